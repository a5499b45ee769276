"""Read masks in which structures are drawn in colours or grey values: the setting `mask_colours` of own datasets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from monai.data import MetaTensor

from medfed.core.errors import Problem
from medfed.images import reading, two_dimensional

ColourEntry = int | str | tuple[int | str, ...]  # one colour, or several, as a config writes them
BACKGROUND = "background"  # name of the colour that belongs to no structure
_HEX = re.compile(r"#[0-9a-fA-F]{6}")
_GREY = 0x010101  # times a grey value is the number of this colour


def colours_of(entry: ColourEntry) -> tuple[int, ...]:
    """Return the colours in an entry, each as 65536 red + 256 green + blue: 128, "#ff0000", [255, 0, 0], or several."""
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
    """Return the structures of each colour; the background ("background", else `background_value`) is first."""
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
    """Read a mask, (S, H, W, D) uint8 of 0 and 1; `label_values`: 0 for background, n for structure n."""
    colours, affine = _read_colours(path, notices)
    counts = dict(zip(*(column.tolist() for column in np.unique(colours, return_counts=True))))
    if unknown := counts.keys() - by_colour.keys():
        frequent = max(sorted(unknown), key=lambda colour: counts[colour])
        names = ", ".join(f"{name_of(key)} ({' and '.join(of_key) or BACKGROUND})" for key, of_key in by_colour.items())
        found = f"the mask has {len(unknown)} colours without a name in data.mask_colours, such as {name_of(frequent)}"
        cure = f"name them there, such as {BACKGROUND}, or save the mask as PNG with one colour per structure"
        raise Problem("colours without a name", path, f"{found}; expected {names}", cure)
    number_of = {names: number for number, names in enumerate(dict.fromkeys(by_colour.values()))}  # 0: the background
    channels = [np.isin(colours, [key for key, names in by_colour.items() if name in names]) for name in structures]
    return MetaTensor(
        torch.from_numpy(np.stack(channels).astype(np.uint8)),
        affine=affine,
        meta={"label_values": sorted({number_of[by_colour[colour]] for colour in counts})},
    )


def name_of(colour: int) -> str:
    """Return a colour as text: the grey value, such as "128", or red, green and blue, such as "#ff0000"."""
    return str(colour // _GREY) if colour % _GREY == 0 else f"#{colour:06x}"


def _read_colours(path: Path, notices: list[str]) -> tuple[np.ndarray, torch.Tensor | None]:
    """Return the colour of each voxel (H, W, D), larger than all colours for greys above 255, and a volume's affine."""
    if not reading.is_2d_image_file(path):
        volume = reading.read_labels(path, notices)
        return volume.numpy()[0].astype(np.int64) * _GREY, volume.affine
    reading.check_file(path)
    pixels = two_dimensional.read_colours(path, notices).astype(np.int64)[:, :, None]
    return pixels @ (1 << 16, 1 << 8, 1) if pixels.ndim == 4 else pixels * _GREY, None
