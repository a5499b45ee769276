"""The predicted Dice of a hospital's images as text for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medfed.outputs.tables.run_notes import data_label
from medfed.outputs.tables.table import align_columns

TITLES = {
    "height": "height (pixels)",
    "width": "width (pixels)",
    "spacing_height_mm": "voxel height (mm)",
    "spacing_width_mm": "voxel width (mm)",
    "spacing_slices_mm": "slice distance (mm)",
    "intensity_p5": "intensity, percentile 5",
    "intensity_p50": "intensity, median",
    "intensity_p95": "intensity, percentile 95",
    "brightness": "brightness (prepared)",
    "contrast": "contrast (prepared)",
    "sharpness": "sharpness (prepared)",
    "low_frequency_amplitude": "low-frequency amplitude",
}


def prediction_text(summary: Mapping[str, Any]) -> str:
    """Return the predictions as text.

    Args:
        summary: content of `summary.json`.
    """
    bundle = summary["bundle"]
    lines = [
        data_label(summary["data"]),
        f"{bundle['name']} {bundle['version']}".strip(),
        f"{summary['n_cases']} cases, {summary['n_local_models']} local models",
        "",
    ]
    for name, entry in summary["structures"].items():
        lines += _structure(name, entry, summary["failure_dice"])
    return "\n".join([*lines, *_images(summary["images"])])


def _structure(name: str, entry: Mapping[str, Any], failure_dice: float) -> list[str]:
    calibration = entry["calibration"]
    if calibration is None:
        lines = [f"{name}: the sites reported too few patients, so that only the agreement of the models is shown."]
    elif entry["n_predicted"]:
        lines = [
            f"{name}: predicted Dice {entry['mean_predicted_dice']:.3f} (mean over {entry['n_predicted']} cases), "
            f"{entry['n_predicted_failures']} cases below {failure_dice:g}",
            f"  measured at the sites: mean Dice {calibration['mean_dice']:.3f} of {calibration['n']} cases; error "
            f"{calibration['error']:.3f}, and {calibration['constant_error']:.3f} if the mean is always predicted"
            + (
                " (each site left out)"
                if calibration["is_between_sites"]
                else " (on the same patients; too few sites for an interval)"
            ),
        ]
        if (correlation := calibration["correlation"]) is None or correlation <= 0:
            lines.append(
                "  At the sites, cases with a higher agreement did not have a higher Dice: use neither the "
                "numbers nor the order of the cases."
            )
        elif calibration["error"] >= calibration["constant_error"]:
            lines.append(
                "  At the sites, the prediction is not better than their mean Dice: use the order of the "
                "cases, not the numbers."
            )
    else:
        lines = [f"{name}: no case has a mask."]
    if entry["n_extrapolated"]:
        lines.append(
            f"  extrapolated cases: {entry['n_extrapolated']}; there the models agree less, or more, than at the sites."
        )
    if entry["n_empty"]:
        lines.append(f"  cases with an empty mask: {entry['n_empty']}; their Dice is 0 if the structure is there.")
    if "check" in entry:
        lines += _check(entry["check"])
    table = [["look at first", "predicted", "agreement", "status"]]
    table += [
        [f"{row['site']}/{row['case']}", _number(row["predicted_dice"]), _number(row["agreement"]), row["status"]]
        for row in entry["look_first"]
    ]
    return [*lines, _aligned(table), ""]


def _check(check: Mapping[str, Any]) -> list[str]:
    """Return the comparison with the labels."""
    lines = [
        f"  with labels: true Dice {_number(check['mean_true'])} (mean over {check['n']} cases), its correlation "
        f"with the agreement {_number(check['pearson'])} (of the ranks: {_number(check['spearman'])})"
    ]
    if check["mae"] is not None:
        lines += [
            f"  mean absolute error of the prediction {check['mae']:.3f}, and {check['mae_constant']:.3f} if the "
            f"sites' mean is always predicted; {_number(check['in_interval'])} of the true Dice are in their interval",
            f"  {check['n_failures']} failures, of which {check['n_misses']} were not predicted and {check['n_empty']} "
            f"are empty masks; {check['n_false_warnings']} false warnings",
        ]
    area, random_area, best_area = (_number(check[key]) for key in ("aurc", "aurc_random", "aurc_best"))
    return [
        *lines,
        f"  area under the risk-coverage curve {area}; {random_area} in random order, {best_area} in the best order",
    ]


def _images(distances: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the comparison of the images with those of the sites."""
    if not distances:
        return ["The sites reported no facts about their images."]
    table = [["images", "here", "range of the sites", "", "nearest", "cases outside"]]
    table += [
        [
            TITLES.get(row["name"], row["name"]),
            f"{row['mean']:.4g}",
            f"{row['low']:.4g} to {row['high']:.4g}",
            "inside" if row["inside"] else "OUTSIDE",
            row["nearest"],
            f"{row['n_outside']}/{row['n']}",
        ]
        for row in distances
    ]
    return [_aligned(table)]


def _aligned(table: Sequence[Sequence[str]]) -> str:
    return align_columns([[(cell, "") for cell in line] for line in table], False, n_left=1)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
