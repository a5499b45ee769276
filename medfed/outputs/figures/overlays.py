"""Reference and predicted masks on images: contours of thick structures; thin ones, such as vessels, are filled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import nibabel as nib
import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from scipy.ndimage import binary_dilation

from medfed.datasets.case import Volume
from medfed.outputs.figures.figure import (
    DPI,
    PANEL_PX,
    SKY,
    YELLOW,
    add_legend,
    as_array,
    new_figure,
    resized,
    tiled,
    to_display_orientation,
    to_pixels,
)

REFERENCE, PREDICTION = SKY, YELLOW  # contours, and pixels that only one of the two has
TRUE_POSITIVE, FALSE_POSITIVE, FALSE_NEGATIVE = "#00B383", PREDICTION, REFERENCE  # dark, bright and medium
THIN = 0.04  # mean width of a structure that is filled, as a fraction of the longer side of the panel
SLICE_PX, GAP_PX, TEXTS_PX = 360, 16, 110  # side of one of several slices; between panels; for texts above and below
Panel = tuple[np.ndarray, str, bool]  # uint8 (rows, columns, 3), a note, and whether masks are filled


def case_panels(
    volume: Volume,
    prediction: object,
    n_slices: int = 3,
    by_reference: bool = False,
    box: tuple[int, int] | None = None,
) -> list[Panel]:
    """Draw the masks of a case on up to `n_slices` slices, with the patient's front up and right side on the left.

    `prediction` is (S, H, W, D), as `volume.mask`. One slice is that with the largest reference. `by_reference`: crop
    around the reference only, so that the figures of two methods differ only in the prediction.
    """
    spacing = volume.spacing_mm
    axes = None if spacing is None else nib.aff2axcodes(np.asarray(volume.image.affine))[:2]
    image, reference, predicted = (
        to_display_orientation(as_array(array), axes) for array in (volume.image, volume.mask, prediction)
    )
    low, high = np.percentile(image.reshape(-1)[:: max(1, image.size // 2**20)], (1, 99))
    rows, columns = _region(reference, reference if by_reference else predicted)
    aspect = 1.0 if spacing is None else spacing[1] / spacing[0]
    size = np.array([(rows.stop - rows.start) * aspect, columns.stop - columns.start])
    slices, panels = _slices(reference, predicted, n_slices), []
    box = box or (PANEL_PX if len(slices) == 1 else SLICE_PX,) * 2
    size = np.maximum(1, np.round(size * min(np.array(box) / size))).astype(int)
    for index in slices:
        shown = resized(image[:, rows, columns, index], *size)
        masks = reference[:, rows, columns, index] > 0, predicted[:, rows, columns, index] > 0
        pixels, is_filled = _blended(((shown - low) / max(high - low, 1e-6)).clip(0, 1), *masks)
        notes = [f"slice {index + 1} of {image.shape[3]}"] if image.shape[3] > 1 else []
        whole = reference[..., index].any(), predicted[..., index].any()
        notes += [f"no {name}" for name, there in zip(("reference", "prediction"), whole) if not there]
        if predicted[..., index].sum() > masks[1].sum():
            notes.append("prediction continues outside")
        panels.append((pixels, ", ".join(notes) or " ", is_filled))  # never empty: panels of all methods are equal
    return panels


def overlays(cases: Mapping[str, Sequence[Panel]], title: str) -> Figure:
    """The panels of `case_panels` by title: one line for each volume; 2-D images stand side by side."""
    names, several = list(cases), max(map(len, cases.values())) > 1
    lines = list(cases.values()) if several else [[panel for panels in cases.values() for panel in panels]]
    joined, tops, middles = tiled([[pixels for pixels, *_ in line] for line in lines], (TEXTS_PX, GAP_PX))
    size_in = joined.shape[1] / DPI, (joined.shape[0] + TEXTS_PX) / DPI + 0.7
    figure = new_figure(max(6.0, size_in[0]), size_in[1], title)
    axes = figure.subplots()
    axes.imshow(joined)
    axes.set_axis_off()
    for number, (line, top) in enumerate(zip(lines, tops)):
        for column, (middle, (pixels, note, _)) in enumerate(zip(middles, line)):
            axes.text(middle, top + len(pixels) + 6, note, fontsize=9, ha="center", va="top")
            if not several or column == len(line) // 2:
                name = names[number if several else column]
                axes.text(middle, top - 8, name, fontsize=10, ha="center", va="bottom")
    filled = {is_filled for line in lines for *_, is_filled in line}
    entries = [("-", REFERENCE, "reference"), ("-", PREDICTION, "prediction")] * (False in filled)
    parts = ((TRUE_POSITIVE, "true positive"), (FALSE_POSITIVE, "false positive"), (FALSE_NEGATIVE, "false negative"))
    add_legend(figure, entries + [("s", colour, name) for colour, name in parts] * (True in filled), dark=True)
    return figure


def _slices(reference: np.ndarray, predicted: np.ndarray, n: int) -> list[int]:
    """The slices to show, of the reference; without one, of the prediction or the image."""
    areas = next((a for a in (mask.sum(axis=(0, 1, 2)) for mask in (reference, predicted)) if a.any()), None)
    if n == 1:
        return [reference.shape[3] // 2 if areas is None else int(areas.argmax())]
    marked = np.arange(reference.shape[3]) if areas is None else np.flatnonzero(areas)
    return sorted({int(marked[round(share * (len(marked) - 1))]) for share in (0.1, 0.5, 0.9)})


def _region(*masks: np.ndarray) -> tuple[slice, slice]:
    """The rows and columns to show: the bounding box of the masks, enlarged by half its size."""
    marked = np.logical_or.reduce([mask.any(axis=(0, 3)) for mask in masks])
    if not marked.any():
        return slice(0, marked.shape[0]), slice(0, marked.shape[1])
    places = [np.flatnonzero(marked.any(axis=axis)) for axis in (1, 0)]
    margin = 8 + max(place[-1] - place[0] for place in places) // 2
    first, last = ([int(place[end]) for place in places] for end in (0, -1))
    rows, columns = (slice(max(a - margin, 0), b + margin + 1) for a, b in zip(first, last))
    return slice(rows.start, min(rows.stop, marked.shape[0])), slice(columns.start, min(columns.stop, marked.shape[1]))


def _blended(image: np.ndarray, reference: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, bool]:
    """Draw masks (S, H, W) on an image (C, rows, columns) in [0, 1]; also return whether they are filled."""
    pixels = to_pixels(image)
    size = pixels.shape[:2]
    truth, guess = resized(reference, *size), resized(predicted, *size)
    thick = truth if truth.any() else guess
    length = np.abs(np.diff(thick, axis=1)).sum() + np.abs(np.diff(thick, axis=2)).sum()  # of the boundary
    if 2 * thick.sum() < THIN * max(size) * length:
        parts = {TRUE_POSITIVE: reference & predicted, FALSE_POSITIVE: predicted & ~reference}
        parts[FALSE_NEGATIVE] = reference & ~predicted
        shares = {colour: resized(part, *size).max(axis=0)[..., None] for colour, part in parts.items()}
        total = sum(shares.values())
        colour = sum(np.array(to_rgb(name)) * share for name, share in shares.items()) / np.maximum(total, 1e-6)
        opacity = np.minimum(2 * total, 1) * 0.85  # twice the covered fraction, so that lines below a pixel survive
        return (pixels * (1 - opacity) + 255 * colour * opacity).astype(np.uint8), True
    width = max(1, max(size) // 160)
    for masks, colour, is_outside in ((truth, REFERENCE, False), (guess, PREDICTION, True)):
        for mask in masks > 0.5:
            mask = np.pad(mask if is_outside else ~mask, width, constant_values=not is_outside)
            line = (binary_dilation(mask, iterations=width) & ~mask)[width:-width, width:-width]
            shade = binary_dilation(line, iterations=width) & ~line
            pixels[shade] = pixels[shade] // 2
            pixels[line] = 255 * np.array(to_rgb(colour))
    return pixels, False
