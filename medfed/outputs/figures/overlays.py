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
TEXTS_IN, MAX_ROW_IN = 0.7, 3.8  # height of the texts above and below an image; of an image and its texts


def save_overlays(cases: Sequence[Mapping], path: str | Path, data_label: str, common_cases: bool = False) -> None:
    """Write images with contours of the reference masks (true masks) and of the predicted masks.

    A scan is shown as three slices with the reference mask, with the patient's front up and right side on the left;
    without `affine`, H must increase to the patient's left and W to the back. A 2-D image has the axis H downwards.

    Args:
        cases: one dict per image or scan, with `title`, `image` (C, H, W, D) in [0, 1], `reference` and `prediction`
            (S, H, W, D; a 0/1 mask for each of S structures), and `spacing` (mm along H, W and D; None for a 2-D
            image, with D = 1). Optional for a scan: `affine`, (4, 4), from voxels to mm.
        common_cases: show only the slice with the largest reference area, cropped by the reference only, so that the
            figures of two methods differ only in the predicted contours. False crops around both masks.
    """
    upright = [_to_display(case) for case in cases]
    slices = [[_fullest_slice(case)] if common_cases else _slices(case) for case in upright]
    n_slices = max(map(len, slices))
    shape = (len(upright), n_slices) if n_slices > 1 else (1, len(upright))  # 2-D images stand side by side
    keys = ("reference", "prediction")[: 1 if common_cases else 2]
    regions = [_region(*(case[key].astype(bool) for key in keys)) for case in upright]
    width_in = max(6.0, 3.5 * shape[1])
    highest = max(_height_per_width(region) * case["aspect"] for region, case in zip(regions, upright))
    row_in = min(highest * width_in / shape[1] + TEXTS_IN, MAX_ROW_IN)
    figure = new_figure(width_in, row_in * shape[0] + 0.9)
    panels = figure.subplots(*shape, squeeze=False).reshape(len(upright), n_slices)
    for line, case, places, region in zip(panels, upright, slices, regions):
        for axes, index in zip(line, places):
            _draw_slice(axes, case, index, region)
        for axes in line[len(places) :]:
            axes.set_visible(False)
        line[len(places) // 2].set_title(case["title"], fontsize=10)
    add_legend(figure, [("-", REFERENCE, "reference"), ("--", PREDICTION, "prediction")], dark=True)
    title = "Cases chosen without regard to scores" if common_cases else "Prediction against reference"
    save_png(figure, path, f"{title} ({data_label})")


def _to_display(case: Mapping) -> dict:
    """The case as arrays (C, rows, columns, D), with `aspect`, the height of a pixel divided by its width."""
    spacing, affine = case["spacing"], case.get("affine")
    axes = None if spacing is None else "LP" if affine is None else nib.aff2axcodes(np.asarray(affine))[:2]
    arrays = {key: to_display_orientation(as_array(case[key]), axes) for key in ("image", "reference", "prediction")}
    return {"title": case["title"], "aspect": 1.0 if spacing is None else spacing[1] / spacing[0], **arrays}


def _slices(case: Mapping) -> list[int]:
    """Slices near both ends and in the middle of the reference; without one, of the prediction or the image."""
    for mask in (case["reference"], case["prediction"], np.ones_like(case["reference"])):
        marked = np.flatnonzero(mask.any(axis=(0, 1, 2)))
        if len(marked):
            break
    return sorted({int(marked[round(share * (len(marked) - 1))]) for share in (0.1, 0.5, 0.9)})


def _fullest_slice(case: Mapping) -> int:
    """Index of the slice with the largest reference area; the middle slice if the reference is empty."""
    sizes = case["reference"].astype(bool).any(axis=0).sum(axis=(0, 1))
    return int(sizes.argmax()) if sizes.any() else len(sizes) // 2


def _region(*masks: np.ndarray) -> list[tuple[float, float]]:
    """(first, last) row and column to show: the bounding box of the masks, enlarged by half its size."""
    marked = np.logical_or.reduce(masks).any(axis=(0, 3))
    if not marked.any():
        return [(-0.5, size - 0.5) for size in marked.shape]
    places = [np.flatnonzero(marked.any(axis=axis)) for axis in (1, 0)]
    margin = 8 + max(place[-1] - place[0] for place in places) // 2
    return [
        (max(place[0] - margin, 0) - 0.5, min(place[-1] + margin, size - 1) + 0.5)
        for place, size in zip(places, marked.shape)
    ]


def _height_per_width(region: Sequence[tuple[float, float]]) -> float:
    (top, bottom), (left, right) = region
    return (bottom - top) / (right - left)


def _draw_slice(axes: Axes, case: Mapping, index: int, region: Sequence[tuple[float, float]]) -> None:
    """Draw slice `index` with the contours of both masks; `region` is (first, last) of rows and columns."""
    from matplotlib.patheffects import withStroke

    show_image(axes, case["image"][..., index], case["aspect"])
    for key, colour, dash in (("reference", REFERENCE, "-"), ("prediction", PREDICTION, (0, (4, 2)))):
        for mask in case[key][..., index]:
            if mask.any():
                closed = np.pad(mask.astype(float), 1)
                rows, columns = (np.arange(-1, size + 1) for size in mask.shape)
                contours = axes.contour(columns, rows, closed, [0.5], colors=colour, linestyles=[dash], linewidths=1.6)
                contours.set_path_effects([withStroke(linewidth=2.8, foreground=BLACK, alpha=0.5)])
    (top, bottom), (left, right) = region
    axes.set(xlim=(left, right), ylim=(bottom, top), anchor="N")  # the titles of a row are at the same height
    n_slices = case["image"].shape[3]
    notes = [f"slice {index + 1} of {n_slices}"] if n_slices > 1 else []
    notes += [f"no {key}" for key in ("reference", "prediction") if not case[key][..., index].any()]
    rows, columns = np.nonzero(case["prediction"][..., index].any(axis=0))
    if len(rows) and (rows.min() < top or rows.max() > bottom or columns.min() < left or columns.max() > right):
        notes.append("prediction continues outside")
    axes.set_xlabel(", ".join(notes) or " ", fontsize=9)  # never empty, so that the panels of all methods are equal
