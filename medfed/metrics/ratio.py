"""The vertical cup-to-disc ratio, which ophthalmologists use for glaucoma, and the error of its prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from torch import Tensor

from medfed.metrics.case_file import write_rows
from medfed.metrics.summary import present_roles

COLUMNS = ("site", "role", "patient", "image", "reference", "predicted", "error")


def vertical_ratio(inner: Tensor, outer: Tensor) -> float | None:
    """Return the ratio of the vertical diameters of two structures, for example of optic cup and optic disc.

    The vertical diameter of a structure is the number of pixel rows from its first to its last row.

    Args:
        inner: (H, W, D), above 0 inside the inner structure; H runs from top to bottom.
        outer: (H, W, D), above 0 inside the outer structure, which surrounds the inner structure.

    Returns:
        The vertical diameter of the inner structure divided by the vertical diameter of the outer structure, at least
        0. The ratio is 0 if only the inner structure is empty, and None if the outer structure is empty.
    """
    heights = [_height(mask) for mask in (inner, outer)]
    return heights[0] / heights[1] if heights[1] else None


def ratio_row(site: str, role: str, patient: str, image: str, reference: float | None, predicted: float | None) -> dict:
    """Return one image's row of `ratios.csv`: the ratio of two structures' heights (optic cup to optic disc).

    Args:
        site: name of the patient's site.
        role: what the site is in the run: "seen" (it trained), "unseen" (it did not train), or "validation" (it did not
            train, but may have helped to select the round).
        patient: identifier of the patient.
        image: name of the patient's image or volume, unique within the site.
        reference: ratio in the true mask; None if the outer structure of the true mask is empty.
        predicted: ratio in the predicted mask; None if the outer structure of the predicted mask is empty. For the
            error, None counts as 0.

    Returns:
        The arguments by name, and "error": the absolute difference of the two ratios, or None if `reference` is None.
    """
    row = {"site": site, "role": role, "patient": patient, "image": image} | {
        "reference": reference,
        "predicted": predicted,
    }
    return row | {"error": None if reference is None else abs(reference - (predicted or 0.0))}


def summarise_ratios(rows: Sequence[Mapping]) -> dict:
    """Summarise, by role and site, the errors of a predicted ratio of heights, such as optic cup to optic disc.

    Args:
        rows: one dict per image, with "site", "role" ("seen", "unseen" or "validation"), "patient" and "error" (the
            absolute error of the ratio, or None), as `ratio_row` returns them.

    Returns:
        {ROLE: {"sites": {SITE: {"n", "mean_error"}}, "mean_error"}}. For a site, "n" is the number of patients whose
        error is known, and "mean_error" is the mean of their errors (of each, the mean of
        the images first). A site without such patients is
        left out. For a role, "mean_error" is the mean of the sites' mean errors, or None if the role has no sites. The
        dict is empty if there are no rows.
    """
    summary: dict = {}
    for role in present_roles(rows) if rows else ():
        known = [row for row in rows if row["role"] == role and row["error"] is not None]
        errors: dict[str, dict[str, list[float]]] = {}
        for row in known:
            errors.setdefault(row["site"], {}).setdefault(row["patient"], []).append(row["error"])
        sites = {
            site: {"n": len(patients), "mean_error": fmean(map(fmean, patients.values()))}
            for site, patients in sorted(errors.items())
        }
        mean = fmean(site["mean_error"] for site in sites.values()) if sites else None
        summary[role] = {"sites": sites, "mean_error": mean}
    return summary


def write_ratios(path: str | Path, rows: Sequence[Mapping]) -> None:
    """Write the file `ratios.csv`, sorted by role, site and image. The value None becomes an empty cell.

    Args:
        path: the file to write.
        rows: one dict per image, with the ratio of two structures' heights in the true and in the predicted mask, as
            `ratio_row` returns it.
    """
    write_rows(path, [dict(row) for row in rows], COLUMNS, ("role", "site", "image"), _format_value)


def _format_value(value: object, column: str) -> str:
    """Format a value of `ratios.csv`: numbers with six decimals, None as an empty text."""
    return "" if value is None else f"{value:.6f}" if isinstance(value, float) else str(value)


def _height(mask: Tensor) -> int:
    """Return the number of rows from the first to the last that contain the structure."""
    rows = (mask > 0).flatten(1).any(dim=1).nonzero()
    return int(rows.max() - rows.min()) + 1 if len(rows) else 0
