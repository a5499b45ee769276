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
    """Return one image's row of `ratios.csv`: the arguments, and "error", the absolute difference or None.

    A ratio is None if the outer structure of the mask is empty; a predicted None counts as 0 for the error.
    """
    error = None if reference is None else abs(reference - (predicted or 0.0))
    return dict(zip(COLUMNS, (site, role, patient, image, reference, predicted, error)))


def summarise_ratios(rows: Sequence[Mapping]) -> dict:
    """Summarise the errors of rows of `ratio_row` by role and site.

    Returns {ROLE: {"sites": {SITE: {"n", "mean_error"}}, "mean_error"}}: for a site, the number of patients whose error
    is known, and the mean of their errors (of each, the mean of the images first); for a role, the mean of its sites'
    means, or None without sites. A site without such patients is left out.
    """
    table = pd.DataFrame(rows).astype({"error": float})
    of_patients = table.groupby(["role", "site", "patient"], as_index=False).error.mean().dropna()
    summary = {}
    for role in sorted({"seen", "unseen", *table.role}):
        errors = of_patients[of_patients.role == role].groupby("site").error
        sites = {site: {"n": len(of_site), "mean_error": float(of_site.mean())} for site, of_site in errors}
        summary[role] = {"sites": sites, "mean_error": float(errors.mean().mean()) if sites else None}
    return summary


def write_ratios(path: str | Path, rows: Sequence[Mapping]) -> None:
    """Write the file `ratios.csv`, sorted by role, site and image. The value None becomes an empty cell."""
    table = pd.DataFrame(rows).sort_values(["role", "site", "image"])
    write_atomically(Path(path), table.to_csv(index=False, float_format="%.6f", lineterminator="\n"))


def _height(mask: Tensor) -> int:
    """Return the number of rows from the first to the last that contain the structure."""
    rows = (mask > 0).flatten(1).any(dim=1).nonzero()
    return int(rows.max() - rows.min()) + 1 if len(rows) else 0
