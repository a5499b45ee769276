"""The vertical cup-to-disc ratio, which ophthalmologists use for glaucoma, and the error of its prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from torch import Tensor

from medfed.core.files import write_atomically

COLUMNS = ("site", "role", "patient", "image", "reference", "predicted", "error")


def vertical_ratio(inner: Tensor, outer: Tensor) -> float | None:
    """Return the ratio of the vertical diameters of two structures, for example of optic cup and optic disc.

    The vertical diameter of a structure is the number of pixel rows from its first to its last row.

    Args:
        inner: (H, W, D), above 0 inside the inner structure; H runs from top to bottom.
        outer: (H, W, D), above 0 inside the outer structure, which surrounds the inner structure.

    Returns:
        The ratio, at least 0. It is 0 if only the inner structure is empty, and None if the outer structure is empty.
    """
    heights = [_height(mask) for mask in (inner, outer)]
    return heights[0] / heights[1] if heights[1] else None


def ratio_row(site: str, role: str, patient: str, image: str, reference: float | None, predicted: float | None) -> dict:
    """Return a row of `ratios.csv`. A ratio is None without the outer structure; as a prediction, it counts as 0."""
    error = None if reference is None else abs(reference - (predicted or 0.0))
    return dict(zip(COLUMNS, (site, role, patient, image, reference, predicted, error)))


def summarise_ratios(rows: Sequence[Mapping]) -> dict:
    """Return, by role, the mean error of each site over its patients, and the mean of its sites' means."""
    table = pd.DataFrame(rows).astype({"error": float})
    of_patients = table.groupby(["role", "site", "patient"], as_index=False).error.mean().dropna()
    summary = {}
    for role in sorted({"seen", "unseen", *table.role}):
        errors = of_patients[of_patients.role == role].groupby("site").error
        sites = {site: {"n": len(of_site), "mean_error": float(of_site.mean())} for site, of_site in errors}
        summary[role] = {"sites": sites, "mean_error": float(errors.mean().mean()) if sites else None}
    return summary


def write_ratios(path: str | Path, rows: Sequence[Mapping]) -> None:
    table = pd.DataFrame(rows).sort_values(["role", "site", "image"])
    write_atomically(Path(path), table.to_csv(index=False, float_format="%.6f", lineterminator="\n"))


def _height(mask: Tensor) -> int:
    rows = (mask > 0).flatten(1).any(dim=1).nonzero()
    return int(rows.max() - rows.min()) + 1 if len(rows) else 0
