"""Reference and predicted masks as contours on images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import nibabel as nib
import numpy as np

from medfed.outputs.figures.figure import (
    BLACK,
    SKY,
    YELLOW,
    add_legend,
    as_array,
    new_figure,
    save_png,
    show_image,
    to_display_orientation,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REFERENCE, PREDICTION = SKY, YELLOW


def save_overlays(cases: Sequence[Mapping], path: str | Path, data_label: str, common_cases: bool = False) -> None:
    """Reference and prediction as contours on the image: three slices of a volume, or the whole of a picture.

    Args:
        common_cases: True shows one slice of each case, the one with the largest reference area, cropped by the
            reference only, so that the figures of two methods differ in the predicted contours alone.
        cases: {title (which case, its Dice), image (C, H, W, D) in [0, 1], reference and prediction (S, H, W, D),
            spacing (mm along H, W, D, or None)} and, for volumes, `affine` (4, 4) where known, to show them as
            radiologists do: front up, the patient's right on the left. Without spacing H is rows (a picture); else H
            runs to the patient's left and W to the back, unless `affine` tells otherwise.
    """
    shown = [_upright(case) for case in cases]
    slices = [[_fullest_slice(case)] if common_cases else _slices(case) for case in shown]
    n_slices = max(map(len, slices))
    shape = (len(shown), n_slices) if n_slices > 1 else (1, len(shown))  # 2-D images stand side by side
    figure = new_figure(max(6.0, 3.5 * shape[1]), 3.8 * shape[0] + 0.9)
    panels = figure.subplots(*shape, squeeze=False).reshape(len(shown), n_slices)
    for line, case, places in zip(panels, shown, slices):
        region = _region(*(case[key].astype(bool) for key in ("reference", "prediction")[: 1 if common_cases else 2]))
        for axes, index in zip(line, places):
            _draw_slice(axes, case, index, region)
        for axes in line[len(places) :]:
            axes.set_visible(False)
        line[len(places) // 2].set_title(case["title"], fontsize=10)
    add_legend(figure, [("-", REFERENCE, "reference"), ("--", PREDICTION, "prediction")], dark=True)
    said = ", the same cases for every method" if common_cases else ""
    save_png(figure, path, f"Prediction against reference{said} ({data_label})")


def _upright(case: Mapping) -> dict:
    """The case as numpy arrays (C, rows, columns, D), with the shape of a pixel on the screen."""
    spacing, affine = case["spacing"], case.get("affine")
    axes = None if spacing is None else "LP" if affine is None else nib.aff2axcodes(np.asarray(affine))[:2]
    arrays = {key: to_display_orientation(as_array(case[key]), axes) for key in ("image", "reference", "prediction")}
    return {"title": case["title"], "aspect": 1.0 if spacing is None else spacing[1] / spacing[0], **arrays}


def _slices(case: Mapping) -> list[int]:
    """Near both ends and in the middle of the reference (if it is empty, of the prediction; else of the image)."""
    for mask in (case["reference"], case["prediction"], np.ones_like(case["reference"])):
        found = np.flatnonzero(mask.any(axis=(0, 1, 2)))
        if len(found):
            break
    return sorted({int(found[round(share * (len(found) - 1))]) for share in (0.1, 0.5, 0.9)})


def _fullest_slice(case: Mapping) -> int:
    """The first of those with most of the reference; the middle one where there is none."""
    sizes = case["reference"].astype(bool).any(axis=0).sum(axis=(0, 1))
    return int(sizes.argmax()) if sizes.any() else len(sizes) // 2


def _region(*masks: np.ndarray) -> list[tuple[float, float]]:
    """The (first, last) row and column to show: all that is marked in any slice, and half as much around it."""
    marked = np.logical_or.reduce(masks).any(axis=(0, 3))
    if not marked.any():
        return [(-0.5, size - 0.5) for size in marked.shape]
    found = [np.flatnonzero(marked.any(axis=axis)) for axis in (1, 0)]
    margin = 8 + max(where[-1] - where[0] for where in found) // 2
    return [
        (max(where[0] - margin, 0) - 0.5, min(where[-1] + margin, size - 1) + 0.5)
        for where, size in zip(found, marked.shape)
    ]


def _draw_slice(axes: Axes, case: Mapping, index: int, region: Sequence[tuple[float, float]]) -> None:
    from matplotlib.patheffects import withStroke

    show_image(axes, case["image"][..., index], case["aspect"])
    for key, colour, dash in (("reference", REFERENCE, "-"), ("prediction", PREDICTION, (0, (4, 2)))):
        for mask in case[key][..., index]:
            if mask.any():
                closed = np.pad(mask.astype(float), 1)
                rows, columns = (np.arange(-1, size + 1) for size in mask.shape)
                drawn = axes.contour(columns, rows, closed, [0.5], colors=colour, linestyles=[dash], linewidths=1.6)
                drawn.set_path_effects([withStroke(linewidth=2.8, foreground=BLACK, alpha=0.5)])
    (top, bottom), (left, right) = region
    axes.set(xlim=(left, right), ylim=(bottom, top), anchor="N")  # titles stand on one line
    n_slices = case["image"].shape[3]
    said = [f"slice {index + 1} of {n_slices}"] if n_slices > 1 else []
    said += [f"no {key}" for key in ("reference", "prediction") if not case[key][..., index].any()]
    rows, columns = np.nonzero(case["prediction"][..., index].any(axis=0))
    if len(rows) and (rows.min() < top or rows.max() > bottom or columns.min() < left or columns.max() > right):
        said.append("prediction goes on outside")
    axes.set_xlabel(", ".join(said) or " ", fontsize=9)  # a line in any case: no panel is larger than another method's
