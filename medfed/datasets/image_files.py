"""Reading pictures (PNG, JPEG, BMP, TIFF) with Pillow, rows first: MONAI's reader gives width before height."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from medfed.core.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "BMP", "TIFF")
MAX_PIXELS = 89_478_485  # Pillow's own limit against decompression bombs: 1 GB of RGB in float32
_BROKEN = (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError)  # what Pillow raises on damaged files
_ORIENTATION = 0x0112
_DEEP_COLOUR = re.compile(r";16[BLN]$")  # in a raw mode of Pillow: 16 bits a channel, unlike BMP's BGR;16


def read_image_file(
    path: Path, white: float | None, notices: list[str], hint: str = "save it as 8-bit grey or RGB"
) -> np.ndarray:
    """(1 or 3, H, W) float32 in [0, 255], turned as its EXIF note says, without alpha; 3 channels are RGB.

    Args:
        path: the file.
        white: the stored value that means white in pictures of more than 8 bits; they are scaled by it.
        notices: gets a clause for everything that was changed.
        hint: what to try when there are more than 8 bits and no `white`.

    Raises:
        UserError: if the file is not a picture, is damaged or too large, or has more than 8 bits and no `white`.
    """
    picture = _open(path, notices)
    if picture.mode.startswith(("I", "F")):
        return _deep(np.asarray(picture, dtype=np.float32), path, white, notices, hint)[None]
    if picture.mode in ("1", "L", "LA"):
        mode = "L"
    elif picture.mode in ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"):
        mode = "RGB"
    else:
        raise UserError(f"{path}: has the colour mode {picture.mode}; expected grey or RGB, so save it as one of these")
    if picture.mode in ("LA", "RGBA", "PA") or "transparency" in picture.info:
        notices.append("alpha channel dropped")
        picture.info.pop("transparency", None)
    if picture.mode in ("P", "PA", "CMYK", "YCbCr"):
        notices.append(f"{'palette' if picture.mode[0] == 'P' else picture.mode} converted to RGB")
    pixels = np.asarray(picture.convert(mode), dtype=np.float32)
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0).copy()


def read_label_file(path: Path, notices: list[str]) -> np.ndarray:
    """(H, W) stored values of a mask; the index where it has a palette.

    Raises:
        UserError: as `read_image_file`, or if the labels are stored as colours.
    """
    picture = _open(path, notices)
    pixels = np.asarray(picture)
    if picture.mode in ("LA", "PA", "RGBA"):
        notices.append("alpha channel of a mask dropped")
        pixels = pixels[..., :-1]
    if pixels.ndim == 3 and (pixels == pixels[..., :1]).all():
        pixels = pixels[..., 0]
    if pixels.ndim == 3:
        n_colours = len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0))
        raise UserError(
            f"{path}: stores its labels as {n_colours} colours; expected one number a pixel, so write the mask again "
            "with 0 for the background and 1, 2, ... for the structures"
        )
    return pixels.astype(np.float32)


def count_channels(path: Path) -> int | None:
    """1 for grey, 3 for colour, by the header alone; None if that cannot be read."""
    try:
        with Image.open(path, formats=FORMATS) as picture:
            return 1 if picture.mode[0] in ("1", "L", "I", "F") and picture.mode != "LAB" else 3
    except (*_BROKEN, Image.DecompressionBombError):
        return None


def _open(path: Path, notices: list[str]) -> Image.Image:
    """The whole picture in memory, the right way up."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about bombs (refused here) and odd metadata (not used)
            with Image.open(path, formats=FORMATS) as picture:
                _check_header(path, picture, notices)
                picture.load()
                return ImageOps.exif_transpose(picture)
    except UserError:
        raise
    except Image.DecompressionBombError as error:
        raise UserError(f"{path}: {error}; expected at most {MAX_PIXELS:,} pixels, so shrink it or cut it") from None
    except UnidentifiedImageError:
        raise UserError(f"{path}: is no PNG, JPEG, BMP or TIFF picture, whatever its name says; look into it") from None
    except _BROKEN as error:
        raise UserError(f"{path}: is damaged or cut short ({error}); copy it again from its source") from None


def _check_header(path: Path, picture: Image.Image, notices: list[str]) -> None:
    """Refuse, before any pixel is decoded, what is too large or has several pages; note what will change."""
    width, height = picture.size
    if width * height > MAX_PIXELS:
        raise UserError(
            f"{path}: has {width} x {height} pixels; expected at most {MAX_PIXELS:,}, so shrink it or cut it"
        )
    if picture.format == "TIFF" and (n_pages := getattr(picture, "n_frames", 1)) > 1:
        raise UserError(f"{path}: has {n_pages} pages; expected one, so save a stack as NIfTI or MHA")
    if picture.mode in ("RGB", "RGBA") and any(map(_is_deep, getattr(picture, "tile", ()))):
        notices.append("16-bit colour read with 8 bits")
    if picture.getexif().get(_ORIENTATION, 1) != 1:  # of a PNG this decodes the pixels
        notices.append("turned as its EXIF note says")


def _is_deep(tile: Sequence[Any]) -> bool:
    """Whether a tile of Pillow's plugins, (decoder, extents, offset, arguments), has more than 8 bits a channel."""
    return _DEEP_COLOUR.search(_raw_mode(tile[3])) is not None


def _raw_mode(arguments: str | tuple) -> str:
    """How the pixels lie in the file, of what a decoder of Pillow is told: that alone, or first of several."""
    return arguments if isinstance(arguments, str) else "".join(map(str, arguments[:1]))


def _deep(pixels: np.ndarray, path: Path, white: float | None, notices: list[str], hint: str) -> np.ndarray:
    """Grey of more than 8 bits on the scale of all others."""
    low, high = float(pixels.min()), float(pixels.max())
    if white is None:
        raise UserError(f"{path}: has more than 8 bits, with values from {low:g} to {high:g}; {hint}")
    if low < 0 or high > white:
        raise UserError(
            f"{path}: has values from {low:g} to {high:g}; expected 0 to data.intensity_max, which is {white:g}"
        )
    notices.append(f"scaled from 0-{white:g} to 0-255")
    return pixels * np.float32(255 / white)
