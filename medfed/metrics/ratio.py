"""The vertical cup-to-disc ratio, which ophthalmologists use for glaucoma, and the error of its prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from torch import Tensor

from medfed.metrics.case_file import write_rows
from medfed.metrics.summary import present_roles

COLUMNS = ("site", "role", "patient", "reference", "predicted", "error")


def vertical_ratio(inner: Tensor, outer: Tensor) -> float | None:
    """Return the ratio of the vertical diameters of two structures, for example of optic cup and optic disc.

    Args:
        inner: (H, W, D), above 0 inside the inner structure; H runs from top to bottom.
        outer: (H, W, D), above 0 inside the structure that contains it.

    Returns:
        Number of rows of the inner structure divided by that of the outer one, at least 0; 0 if the inner one is empty,
        None if the outer one is empty.
    """
    heights = [_height(mask) for mask in (inner, outer)]
    return heights[0] / heights[1] if heights[1] else None


def ratio_row(site: str, role: str, patient: str, reference: float | None, predicted: float | None) -> dict:
    """Return one patient's row of `ratios.csv`.

    Args:
        site: name of the patient's site.
        role: "seen", "unseen" or "validation".
        patient: the patient's identifier.
        reference: the reference's ratio; None if its outer structure is empty.
        predicted: the prediction's ratio; None if its outer structure is empty, which counts as ratio 0.

    Returns:
        The arguments by name, and `error`, the absolute difference; None if the reference is None.
    """
    row = {"site": site, "role": role, "patient": patient, "reference": reference, "predicted": predicted}
    return row | {"error": None if reference is None else abs(reference - (predicted or 0.0))}


def summarise_ratios(rows: Sequence[Mapping]) -> dict:
    """Summarise the rows of `ratios.csv`.

    Args:
        rows: one per patient, as `ratio_row` returns them.

    Returns:
        For each role: `sites`, with the number of patients `n` and the `mean_error` of each site, and `mean_error`, the
        mean over the sites (None without sites). {} without rows.
    """
    summary: dict = {}
    for role in present_roles(rows) if rows else ():
        known = [row for row in rows if row["role"] == role and row["error"] is not None]
        sites = {
            site: {"n": len(errors), "mean_error": fmean(errors)}
            for site in sorted({row["site"] for row in known})
            for errors in [[row["error"] for row in known if row["site"] == site]]
        }
        mean = fmean(site["mean_error"] for site in sites.values()) if sites else None
        summary[role] = {"sites": sites, "mean_error": mean}
    return summary


def write_ratios(path: str | Path, rows: Sequence[Mapping]) -> None:
    """Write `ratios.csv`, sorted by role, site and patient; unknown values are empty.

    Args:
        path: the file.
        rows: one per patient, as `ratio_row` returns them.
    """
    write_rows(path, [dict(row) for row in rows], COLUMNS, ("role", "site", "patient"), _format_value)


def _format_value(value: object, column: str) -> str:
    """Format a value of `ratios.csv`: numbers with six decimals, None as an empty text."""
    return "" if value is None else f"{value:.6f}" if isinstance(value, float) else str(value)


def _height(mask: Tensor) -> int:
    """Return the number of rows from the first to the last that contain the structure."""
    rows = (mask > 0).flatten(1).any(dim=1).nonzero()
    return int(rows.max() - rows.min()) + 1 if len(rows) else 0
