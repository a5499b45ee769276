"""Summaries of scores: means per site, their mean over sites with an interval, and the generalisation gap.

A task (`medfed.tasks.scoring`) says which metrics there are and how a group of rows is scored; everything else is the
same for all tasks. An unknown value is None, never NaN; it is left out of means, and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from medfed.metrics.intervals import Estimate, Limits, estimate_average, estimate_mean, interval

ROLES = ("seen", "unseen")
VALIDATION = "validation"  # role of a site that never trains and may be used to select the round

Rows = Sequence[Mapping]
Group = dict  # of one site and structure: counts, and for each metric {n, mean, ...}


def summarise(
    rows: Sequence[dict],
    structure_of: Callable[[Mapping], str],
    score_group: Callable[[list[dict]], Group],
    counts: Sequence[str],
    metrics: Mapping[str, Limits],
    in_gap: Sequence[str],
    with_spread: bool,
) -> dict:
    """Compute the scores of each role, site and structure from the rows of a run, then their means over the sites.

    A row has the results of one image, or of one structure of one image. The role of a site is "seen" (it trained),
    "unseen" (it did not train) or "validation" (it did not train, but may have helped to select the round).

    `score_group` returns, for the rows of one role, site and structure, the `counts` (the first is the number of cases
    that should have values) and, for each of `metrics`, at least `n`, `mean` and the `interval_entries`. This is
    `result[role]["sites"][site][structure]`. `result[role]["mean"][structure]` has the summed counts and, for each
    metric, `n_sites`, the mean over these sites with equal weights, its 95 % interval, `low` and `high` (None if a site
    has no interval), and the standard deviation `sd` if `with_spread`. A site counts for a metric only if all its cases
    have a value. `result["gap"][structure][metric]`, for the metrics `in_gap`, is the mean of the seen minus the mean
    of the unseen sites; None if a site lacks the metric, or if a role has no sites.
    """
    summary: dict = {}
    for role in present_roles(rows):
        groups: dict[str, dict[str, list[dict]]] = {}
        of_role = [row for row in rows if row["role"] == role]
        for row in sorted(of_role, key=lambda row: (row["site"], structure_of(row), row["image"])):
            groups.setdefault(row["site"], {}).setdefault(structure_of(row), []).append(row)
        sites = {
            site: {name: score_group(group) for name, group in of_site.items()} for site, of_site in groups.items()
        }
        structures = sorted({name for of_site in sites.values() for name in of_site})
        mean = {
            name: _mean_over_sites(
                [site[name] for site in sites.values() if name in site], counts, metrics, with_spread
            )
            for name in structures
        }
        summary[role] = {"sites": sites, "mean": mean}
    structures = sorted({structure_of(row) for row in rows})
    seen, unseen = (summary[role]["mean"] for role in ROLES)
    summary["gap"] = {
        name: _generalisation_gap(seen.get(name), unseen.get(name), next(iter(metrics)), in_gap) for name in structures
    }
    return summary


def interval_entries(values: Sequence[float] | np.ndarray, limits: Limits) -> dict:
    """Return "n_patients", and the standard error "se" and the 95 % interval "low" and "high" of a site's mean."""
    estimate = estimate_mean(values)
    low, high = interval(estimate, limits)
    return {"n_patients": len(values), "se": estimate.se if estimate else None, "low": low, "high": high}


def _mean_over_sites(
    groups: list[Group], counts: Sequence[str], metrics: Mapping[str, Limits], with_spread: bool
) -> dict:
    """Return summed counts, and the mean over sites of each metric of one structure, with its interval."""
    mean: dict = {key: sum(group[key] for group in groups) for key in counts}
    for metric, limits in metrics.items():
        whole = (group[metric] for group in groups if group[counts[0]] and group[metric]["n"] == group[counts[0]])
        known = [scores for scores in whole if scores["mean"] is not None]
        means = [scores["mean"] for scores in known]
        average = estimate_average([_estimate(scores) for scores in known])
        low, high = interval(average, limits)
        mean[metric] = {
            "n_sites": len(means),
            "mean": math.fsum(means) / len(means) if means else None,
            "low": low,
            "high": high,
        }
        if with_spread:
            mean[metric]["sd"] = float(np.std(means, ddof=1)) if len(means) > 1 else None
    return mean


def _estimate(scores: Mapping) -> Estimate | None:
    """Return the mean of one site with its standard error; None if the standard error is unknown."""
    if scores["se"] is None:
        return None
    n = scores["n_patients"]
    return Estimate(scores["mean"], scores["se"], n - 1, n, n)


def _generalisation_gap(
    seen: dict | None, unseen: dict | None, first: str, metrics: Sequence[str]
) -> dict[str, float | None]:
    """Return seen minus unseen mean of each metric; None where a site lacks the metric or a role has no sites."""
    gap: dict[str, float | None] = {}
    for metric in metrics:
        gap[metric] = None
        if seen and unseen and all(0 < role[metric]["n_sites"] == role[first]["n_sites"] for role in (seen, unseen)):
            gap[metric] = seen[metric]["mean"] - unseen[metric]["mean"]
    return gap


def present_roles(rows: Rows) -> tuple[str, ...]:
    """Return the roles that a summary shows: always "seen" and "unseen", and "validation" if a row has it."""
    return (*ROLES, VALIDATION) if any(row["role"] == VALIDATION for row in rows) else ROLES
