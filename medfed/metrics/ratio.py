"""The vertical cup-to-disc ratio, which ophthalmologists read for glaucoma: how far predictions are from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from torch import Tensor

from medfed.metrics.case_file import write_rows
from medfed.metrics.summary import present_roles

COLUMNS = ("site", "role", "patient", "reference", "predicted", "error")


def vertical_ratio(inner: Tensor, outer: Tensor) -> float | None:
    """Height of a structure over the height of the one around it, in rows; 0 for an empty inner one.

    Args:
        inner, outer: (H, W, D), above 0 where the structure is; H runs from top to bottom.

    Returns:
        At least 0; None where the outer structure is empty.
    """
    heights = [_height(mask) for mask in (inner, outer)]
    return heights[0] / heights[1] if heights[1] else None


def ratio_row(site: str, role: str, patient: str, reference: float | None, predicted: float | None) -> dict:
    """One patient; the error is absolute. A predicted outer structure that is missing counts as ratio 0."""
    row = {"site": site, "role": role, "patient": patient, "reference": reference, "predicted": predicted}
    return row | {"error": None if reference is None else abs(reference - (predicted or 0.0))}


def summarise_ratios(rows: Sequence[Mapping]) -> dict:
    """Mean absolute error and number of patients by role and site, and the mean over sites; {} without rows."""
    found: dict = {}
    for role in present_roles(rows) if rows else ():
        known = [row for row in rows if row["role"] == role and row["error"] is not None]
        sites = {
            site: {"n": len(errors), "mean_error": fmean(errors)}
            for site in sorted({row["site"] for row in known})
            for errors in [[row["error"] for row in known if row["site"] == site]]
        }
        mean = fmean(site["mean_error"] for site in sites.values()) if sites else None
        found[role] = {"sites": sites, "mean_error": mean}
    return found


def write_ratios(path: str | Path, rows: Sequence[Mapping]) -> None:
    """`ratios.csv`, sorted; empty where unknown."""
    write_rows(path, [dict(row) for row in rows], COLUMNS, ("role", "site", "patient"), _format_value)


def _format_value(value: object, column: str) -> str:
    return "" if value is None else f"{value:.6f}" if isinstance(value, float) else str(value)


def _height(mask: Tensor) -> int:
    rows = (mask > 0).flatten(1).any(dim=1).nonzero()
    return int(rows.max() - rows.min()) + 1 if len(rows) else 0
