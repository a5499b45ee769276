"""Cut a fundus photograph around the optic disc, and write it with a mask in the values of the dataset `fundus`."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from medfed.core.errors import UserError
from medfed.images import two_dimensional

SIDE = 800  # pixels; the collection of DoFE has squares of this size around the disc
CUP, RIM, BACKGROUND = 0, 128, 255
NOTES = (
    f"photographs are cut to {SIDE} x {SIDE} pixels around the middle of the disc, as its mask marks it, without a "
    "change of scale; the squares of the collection of DoFE may lie elsewhere by some pixels",
)


def read_photograph(path: Path) -> np.ndarray:
    """Return (H, W, 3) uint8; UserError if the file is damaged or not an RGB image with 8 bits."""
    photo = two_dimensional.read_image_file(path, None, [])
    if len(photo) != 3:
        raise UserError("the photograph is grey; expected colour")
    return np.moveaxis(photo, 0, -1).astype(np.uint8)


def pair_as_png(site: str, name: str, photo: np.ndarray, disc: np.ndarray, cup: np.ndarray) -> dict[str, bytes]:
    """Return `SITE/images/NAME.png` and `SITE/masks/NAME.png`, cut to a square of at most `SIDE` pixels.

    `disc`, which includes the cup, and `cup` are (H, W) bool. UserError if sizes differ, a mask is empty, the disc does
    not fit into the square, or most of the cup lies outside the disc.
    """
    for structure, mask in (("disc", disc), ("cup", cup)):
        if mask.shape != photo.shape[:2]:
            raise UserError(
                f"the mask of the {structure} has {mask.shape[1]} x {mask.shape[0]} pixels, the photograph "
                f"{photo.shape[1]} x {photo.shape[0]}"
            )
        if not mask.any():
            raise UserError(f"the mask of the {structure} marks nothing")
    if 2 * (cup & ~disc).sum() > cup.sum():
        raise UserError("most of the cup lies outside the disc; the masks may belong to different images")
    region = tuple(_range_around(np.flatnonzero((disc | cup).any(axis=1 - axis)), disc.shape[axis]) for axis in (0, 1))
    mask = np.full(disc.shape, BACKGROUND, np.uint8)
    mask[disc] = RIM
    mask[cup] = CUP
    return {f"{site}/images/{name}.png": _png(photo[region]), f"{site}/masks/{name}.png": _png(mask[region])}


def _range_around(marked: np.ndarray, length: int) -> slice:
    """`SIDE` pixels, or all if there are fewer, around the middle of the marked ones, inside the image."""
    side = min(SIDE, length)
    extent = int(marked[-1] - marked[0]) + 1
    if extent > side - 2:
        raise UserError(f"the disc has an extent of {extent} pixels; expected less than {side}")
    start = (int(marked[0]) + int(marked[-1]) + 1) // 2 - side // 2
    start = min(max(start, 0), length - side)
    return slice(start, start + side)


def _png(pixels: np.ndarray) -> bytes:
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()
