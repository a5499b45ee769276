"""Compare a hospital's images with those of the sites that trained a model: inside or outside of what they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from medfed.functional.image_facts import NAMES

N_SD = 2.0  # a site's range is its mean +- this many standard deviations over its images
TOLERANCE = 1e-3  # relative, for facts that are equal in all images, such as a voxel size


def compare_images(facts: Tensor, sites: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[dict[str, Any]]:
    """Compare the facts about a hospital's images with the ranges of the sites.

    The range of a fact reaches from the smallest "mean - 2 sd" of a site to the largest "mean + 2 sd".

    Args:
        facts: (N, 13) for N images, in the order of `medfed.functional.image_facts.NAMES`, NaN where a fact is unknown.
        sites: by site and name of a fact, "n", "mean" and "sd" over the site's images.

    Returns:
        One dict for each fact that the hospital and at least one site have: its "name", the hospital's "mean", "low"
        and "high" of the range, the name of the site whose mean is "nearest", whether the hospital's mean is "inside",
        and "n_outside", the number of its images that are not.
    """
    rows = []
    for index, name in enumerate(NAMES):
        values = facts[:, index]
        values = values[values.isfinite()]
        known = {site: of_site[name] for site, of_site in sites.items() if name in of_site}
        if not len(values) or not known:
            continue
        low, high = fact_range(list(known.values()))
        mean = float(values.mean())
        rows.append(
            {
                "name": name,
                "mean": mean,
                "low": low,
                "high": high,
                "inside": low <= mean <= high,
                "nearest": min(known, key=lambda site: abs(known[site]["mean"] - mean)),
                "n_outside": int(((values < low) | (values > high)).sum()),
                "n": len(values),
            }
        )
    return rows


def fact_range(of_sites: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    """Return the range of a fact over sites: the smallest mean - 2 sd and the largest mean + 2 sd, and a tolerance.

    Args:
        of_sites: "mean" and "sd" of each site, at least one.
    """
    low = min(numbers["mean"] - N_SD * numbers["sd"] for numbers in of_sites)
    high = max(numbers["mean"] + N_SD * numbers["sd"] for numbers in of_sites)
    slack = TOLERANCE * max(abs(low), abs(high))
    return low - slack, high + slack


def n_outside(facts: Tensor, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return for each image how many of its facts are outside of the ranges.

    Args:
        facts: (N, 13), as for `compare_images`.
        rows: what `compare_images` returned.
    """
    counts = torch.zeros(len(facts), dtype=torch.int64)
    for row in rows:
        values = facts[:, NAMES.index(row["name"])]
        counts += (values < row["low"]) | (values > row["high"])
    return counts.tolist()
