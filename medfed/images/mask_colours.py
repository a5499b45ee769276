"""Read masks in which structures are drawn in colours or grey values: the setting `mask_colours` of own datasets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
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
MAX_UNNAMED_FRACTION = 0.01  # of the pixels of a JPEG file that have a colour without a name
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
    raise ValueError(
        f"mask_colours: {entry!r} is not a colour; expected a grey value from 0 to 255, a text such as '#ff0000', or "
        "[red, green, blue]"
    )


def structures_by_colour(
    mask_colours: Mapping[str, ColourEntry], structures: Sequence[str], background_value: int
) -> dict[int, tuple[str, ...]]:
    """Return the names of the structures to which each colour belongs (see `colours_of`).

    The background comes first and belongs to none: the entry "background", or else the grey value `background_value`.
    ValueError if an entry is no colour, a structure has none, or one is also the background.
    """
    if set(mask_colours) - {BACKGROUND} != set(structures) or BACKGROUND in structures:
        raise ValueError(
            f"mask_colours must assign colours to each of {list(structures)} (structure_names), and may assign one to "
            f"'{BACKGROUND}', got {list(mask_colours)}"
        )
    background = colours_of(mask_colours.get(BACKGROUND, background_value))
    by_colour: dict[int, tuple[str, ...]] = dict.fromkeys(background, ())
    for name in structures:
        for colour in colours_of(mask_colours[name]):
            if colour in background:
                raise ValueError(
                    f"mask_colours: the colour {name_of(colour)} of '{name}' is also the background; set "
                    f"background_value, or name the colour of the background: {BACKGROUND}"
                )
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
    if reading.is_2d_image_file(path):
        reading.check_exists(path)
        pixels = two_dimensional.read_colours(path, notices).astype(np.int64)
        affine = None
    else:
        volume = reading.read_labels(path, notices)
        pixels, affine = volume.numpy()[0].astype(np.int64), volume.affine
    is_grey = pixels.ndim == 2 or affine is not None
    colours = (
        np.where((pixels >= 0) & (pixels <= 255), pixels * _GREY, -1 - abs(pixels))
        if is_grey
        else (pixels[..., 0] << 16 | pixels[..., 1] << 8 | pixels[..., 2])
    )
    present, places, counts = np.unique(colours, return_inverse=True, return_counts=True)
    places = places.reshape(colours.shape)
    n_pixels = {int(colour): int(n) for colour, n in zip(present, counts)}
    is_jpeg = path.suffix.lower() in JPEG_SUFFIXES and present[0] >= 0
    if is_jpeg and not n_pixels.keys() <= by_colour.keys():
        present = _nearest_colours(path, present, places, by_colour, n_pixels)
        notices.append(BLURRED)
    if unknown := set(map(int, present)) - by_colour.keys():
        raise _unknown_colours(path, {colour: n_pixels[colour] for colour in unknown}, by_colour)
    if len(set(present)) > 1 and not any(by_colour[int(colour)] for colour in present):
        notices.append(LOST)
    number_of = {names: number for number, names in enumerate(dict.fromkeys(by_colour.values()))}  # 0: the background
    table = np.array([number_of[by_colour[int(colour)]] for colour in present], dtype=np.float32)
    labels = torch.from_numpy(table[places])
    mask = MetaTensor(labels[None, ..., None] if affine is None else labels[None], affine=affine)
    return reading.to_structures(path, mask, {number: names for names, number in number_of.items()}, structures)


def name_of(colour: int) -> str:
    """Return a colour as text: the grey value, such as "128", or red, green and blue, such as "#ff0000"."""
    if colour < 0:
        return str(-1 - colour)  # a value above 255 is no colour
    return str(colour // _GREY) if colour % _GREY == 0 else f"#{colour:06x}"


def _nearest_colours(
    path: Path,
    present: np.ndarray,
    places: np.ndarray,
    by_colour: Mapping[int, tuple[str, ...]],
    n_pixels: Mapping[int, int],
) -> np.ndarray:
    """Return the nearest named colour of each colour in a JPEG file; `places` (H, W) are the indices of the pixels.

    A Problem if the file shows a colour without a name: one that is far from all named colours and from the mixtures of
    two of them, which an edge may show, or a mixture that fills more than an edge.
    """
    points, named = _rgb(present), _rgb(np.array(list(by_colour)))
    distances = np.stack([np.linalg.norm(points - colour, axis=1) for colour in named])
    is_far = distances.min(0) > MAX_BLUR
    is_no_mixture = is_far.copy()
    for start, end in combinations(named, 2):
        ratio = ((points - start) @ (end - start) / ((end - start) ** 2).sum()).clip(0, 1)
        mixture = start + ratio[:, None] * (end - start)
        is_no_mixture &= np.linalg.norm(points - mixture, axis=1) > MAX_BLUR
    fills_area = ndimage.binary_erosion(is_far[places], np.ones((3, 3)), border_value=1)
    if (fills_area | is_no_mixture[places]).mean() > MAX_UNNAMED_FRACTION:
        unknown = {int(colour): n_pixels[int(colour)] for colour in present[is_far]}
        raise _unknown_colours(path, unknown, by_colour)
    return np.array(list(by_colour))[distances.argmin(0)]


def _rgb(colours: np.ndarray) -> np.ndarray:
    """Return colours (N,), as in `colours_of`, as red, green and blue (N, 3)."""
    return np.stack([colours >> 16 & 255, colours >> 8 & 255, colours & 255], axis=1).astype(np.float64)


def _unknown_colours(path: Path, unknown: Mapping[int, int], by_colour: Mapping[int, tuple[str, ...]]) -> Problem:
    frequent = sorted(unknown, key=lambda colour: -unknown[colour])[:MAX_NAMED_COLOURS]
    listed = ", ".join(f"{name_of(colour)} ({unknown[colour]:,} pixels)" for colour in frequent)
    more = f", ... ({len(unknown)} colours)" if len(unknown) > len(frequent) else ""
    meanings = {name_of(colour): " and ".join(names) or BACKGROUND for colour, names in by_colour.items()}
    expected = ", ".join(f"{name} ({meaning})" for name, meaning in meanings.items())
    cure = (
        "add the most frequent ones to data.mask_colours, or save it as PNG with one colour per structure"
        if more
        else (f"add them to data.mask_colours; '{BACKGROUND}' is the name for colours of no structure")
    )
    found = f"the mask has colours that data.mask_colours does not name: {listed}{more}; expected {expected}"
    return Problem("colours without a name", path, found, cure)
