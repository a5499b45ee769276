"""Read masks in which structures are drawn in colours or grey values: the setting `mask_colours` of own datasets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from monai.data import MetaTensor
from scipy import ndimage

from medfed.core.errors import Problem
from medfed.images import reading, two_dimensional

ColourEntry = int | str | tuple[int | str, ...]  # one colour, or several, as a config writes them
BACKGROUND = "background"  # name of the colour that belongs to no structure
MAX_NAMED_COLOURS = 4  # in an error message
LOST = "the mask has several colours, but by data.mask_colours all are background"  # a notice
BLURRED = "colours that JPEG has changed became the nearest colour in data.mask_colours"  # a notice
JPEG_SUFFIXES = (".jpg", ".jpeg")
MAX_BLUR = 100.0  # distance of red, green and blue from a colour that JPEG has changed
MAX_FAR_FRACTION = 0.002  # of the pixels of a JPEG file that lie in areas of a larger distance, not on edges
_HEX = re.compile(r"#[0-9a-fA-F]{6}")
_GREY = 0x010101  # times a grey value is the number of this colour


def colours_of(entry: ColourEntry) -> tuple[int, ...]:
    """Return the colours in one entry of `mask_colours`, each as the number 65536 red + 256 green + blue.

    An entry is a grey value in [0, 255], a text such as "#ff0000", three numbers in [0, 255] (red, green, blue), or a
    list of several colours with at least one such text; ValueError for anything else.
    """
    if isinstance(entry, str) and _HEX.fullmatch(entry):
        return (int(entry[1:], 16),)
    if isinstance(entry, int) and 0 <= entry <= 255:
        return (entry * _GREY,)
    if isinstance(entry, Sequence) and not isinstance(entry, str):
        if any(isinstance(part, str) for part in entry):
            return tuple(colour for part in entry for colour in colours_of(part))
        if len(entry) == 3 and all(isinstance(part, int) and 0 <= part <= 255 for part in entry):
            red, green, blue = map(int, entry)
            return (red << 16 | green << 8 | blue,)
    raise ValueError(f"mask_colours: {entry!r} is not a colour; expected 0 to 255, '#ff0000' or [red, green, blue]")


def structures_by_colour(
    mask_colours: Mapping[str, ColourEntry], structures: Sequence[str], background_value: int
) -> dict[int, tuple[str, ...]]:
    """Return the names of the structures to which each colour belongs (see `colours_of`).

    The background comes first and belongs to none: the entry "background", or else the grey value `background_value`.
    ValueError if an entry is no colour, a structure has none, or one is also the background.
    """
    if set(mask_colours) - {BACKGROUND} != set(structures) or BACKGROUND in structures:
        raise ValueError(
            f"mask_colours must assign colours to each of {list(structures)}, and may to '{BACKGROUND}', got "
            f"{list(mask_colours)}"
        )
    background = colours_of(mask_colours.get(BACKGROUND, background_value))
    by_colour: dict[int, tuple[str, ...]] = dict.fromkeys(background, ())
    for name in structures:
        for colour in colours_of(mask_colours[name]):
            if colour in background:
                raise ValueError(f"mask_colours: the colour {name_of(colour)} of '{name}' is also the background")
            by_colour[colour] = (*by_colour.get(colour, ()), name)
    return by_colour


def read_coloured_mask(
    path: Path, by_colour: Mapping[int, tuple[str, ...]], structures: Sequence[str], notices: list[str]
) -> MetaTensor:
    """Read a mask file and return one channel of 0 and 1 per structure, (S, H, W, D) uint8.

    An image with a palette is read as its colours. The values of a volume are grey values. In a JPEG file, which blurs
    edges, each pixel takes the nearest colour. A Problem if the file has a colour that `by_colour`, from
    `structures_by_colour`, does not contain.

    `meta["label_values"]` of the result has 0 if the file shows the background, and 1, 2, ... for the structures that
    it shows, in the order of `by_colour`. Colours of the same structures have the same value.
    """
    colours, affine = _read_colours(path, notices)
    counts = _counts(colours)
    if not counts.keys() <= by_colour.keys() and path.suffix.lower() in JPEG_SUFFIXES:
        colours = _nearest_colours(path, colours, by_colour)
        notices.append(BLURRED)
        counts = _counts(colours)
    if unknown := counts.keys() - by_colour.keys():
        raise _unknown_colours(path, {colour: counts[colour] for colour in unknown}, by_colour)
    if len(counts) > 1 and not any(by_colour[colour] for colour in counts):
        notices.append(LOST)
    number_of = {names: number for number, names in enumerate(dict.fromkeys(by_colour.values()))}  # 0: the background
    channels = [np.isin(colours, [key for key, names in by_colour.items() if name in names]) for name in structures]
    return MetaTensor(
        torch.from_numpy(np.stack(channels).astype(np.uint8)),
        affine=affine,
        meta={"label_values": sorted({number_of[by_colour[colour]] for colour in counts})},
    )


def name_of(colour: int) -> str:
    """Return a colour as text: the grey value, such as "128", or red, green and blue, such as "#ff0000"."""
    if colour < 0:
        return str(-1 - colour)  # a value above 255 is no colour
    return str(colour // _GREY) if colour % _GREY == 0 else f"#{colour:06x}"


def _read_colours(path: Path, notices: list[str]) -> tuple[np.ndarray, torch.Tensor | None]:
    """Return the colour of each voxel (H, W, D) as in `colours_of`, below 0 for other values, and a volume's affine."""
    affine = None
    if reading.is_2d_image_file(path):
        reading.check_file(path)
        pixels = two_dimensional.read_colours(path, notices).astype(np.int64)[:, :, None]
        if pixels.ndim == 4:
            return pixels @ (1 << 16, 1 << 8, 1), None
    else:
        volume = reading.read_labels(path, notices)
        pixels, affine = volume.numpy()[0].astype(np.int64), volume.affine
    return np.where((pixels >= 0) & (pixels <= 255), pixels * _GREY, -1 - abs(pixels)), affine


def _counts(colours: np.ndarray) -> dict[int, int]:
    """Return the number of voxels of each colour."""
    values, counts = np.unique(colours, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _nearest_colours(path: Path, colours: np.ndarray, by_colour: Mapping[int, tuple[str, ...]]) -> np.ndarray:
    """Return the nearest named colour of each pixel; a Problem if areas of the mask are far from all named colours."""
    present, places = np.unique(colours, return_inverse=True)
    named = np.array(list(by_colour))
    points, ends = (np.stack([part >> 16, part >> 8 & 255, part & 255], axis=1) for part in (present, named))
    distances = np.linalg.norm(points[:, None] - ends, axis=2)
    places = places.reshape(colours.shape)
    is_far = (distances.min(1) > MAX_BLUR)[places]
    areas = ndimage.binary_opening(is_far[..., 0], np.ones((5, 5)))  # edges, which JPEG blurs, are thinner
    if areas.mean() > MAX_FAR_FRACTION:
        raise _unknown_colours(path, _counts(colours[is_far]), by_colour)
    return named[distances.argmin(1)][places]


def _unknown_colours(path: Path, unknown: Mapping[int, int], by_colour: Mapping[int, tuple[str, ...]]) -> Problem:
    frequent = sorted(unknown, key=lambda colour: -unknown[colour])[:MAX_NAMED_COLOURS]
    listed = ", ".join(f"{name_of(colour)} ({unknown[colour]:,} pixels)" for colour in frequent)
    more = f", ... ({len(unknown)} colours)" if len(unknown) > len(frequent) else ""
    expected = ", ".join(
        f"{name_of(colour)} ({' and '.join(names) or BACKGROUND})" for colour, names in by_colour.items()
    )
    found = f"the mask has colours that data.mask_colours does not name: {listed}{more}; expected {expected}"
    cure = f"name the frequent ones there, such as {BACKGROUND}, or save the mask as PNG with one colour per structure"
    return Problem("colours without a name", path, found, cure)
