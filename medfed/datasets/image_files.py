"""Read 2-D image files (PNG, JPEG, BMP, TIFF) with Pillow, as arrays with height before width.

MONAI's own reader returns width before height.
"""

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
MAX_PIXELS = 89_478_485  # Pillow's limit against decompression bombs: 1 GB as RGB in float32
_READ_ERRORS = (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError)  # that damaged files raise in Pillow
_ORIENTATION = 0x0112  # EXIF tag
_RAW_MODE_16_BIT = re.compile(r";16[BLN]$")  # Pillow's raw modes with 16 bits per channel; BMP's BGR;16 is not one


def read_image_file(
    path: Path, white: float | None, notices: list[str], hint: str = "save it as 8-bit grey or RGB"
) -> np.ndarray:
    """Read a 2-D image file as grey or RGB values in [0, 255].

    The image is rotated as its EXIF data require, and an alpha channel is dropped.

    Args:
        path: a PNG, JPEG, BMP or TIFF file.
        white: the stored value that means white in images with more than 8 bits, such as 4095. The intensities of such
            an image are multiplied by 255 / white. None raises an error for such an image.
        notices: a short description of every conversion is appended to this list.
        hint: advice to the user, with which the error message ends if the image has more than 8 bits and `white` is
            None.

    Returns:
        (1, H, W) for grey or (3, H, W) for RGB, float32.

    Raises:
        UserError: if the file is not a supported image file, is damaged or too large, or has more than 8 bits and
            `white` is None.
    """
    image = _open(path, notices)
    if image.mode.startswith(("I", "F")):
        return _scale_to_8_bit(np.asarray(image, dtype=np.float32), path, white, notices, hint)[None]
    if image.mode in ("1", "L", "LA"):
        mode = "L"
    elif image.mode in ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"):
        mode = "RGB"
    else:
        raise UserError(
            f"{path}: the image has the colour mode {image.mode}; expected grey or RGB; save it as one of these"
        )
    if image.mode in ("LA", "RGBA", "PA") or "transparency" in image.info:
        notices.append("alpha channel dropped")
        image.info.pop("transparency", None)
    if image.mode in ("P", "PA", "CMYK", "YCbCr"):
        notices.append(f"{'palette' if image.mode[0] == 'P' else image.mode} converted to RGB")
    pixels = np.asarray(image.convert(mode))
    channels_first = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
    return channels_first.astype(np.float32, order="C")  # converted last, because float32 needs four times the memory


def read_label_file(path: Path, notices: list[str]) -> np.ndarray:
    """Read a mask from a 2-D image file as its stored values.

    For an image with a palette, the values are the palette indices. An alpha channel is dropped, and the mask is
    rotated as its EXIF data require.

    Args:
        path: a PNG, JPEG, BMP or TIFF file.
        notices: a short description of every conversion is appended to this list.

    Returns:
        (H, W) float32, the stored value of each pixel, such as 0, 128 and 255.

    Raises:
        UserError: if the file is not a supported image file, is damaged or too large, or stores the labels as colours.
    """
    image = _open(path, notices)
    pixels = np.asarray(image)
    if image.mode in ("LA", "PA", "RGBA"):
        notices.append("alpha channel of a mask dropped")
        pixels = pixels[..., :-1]
    if pixels.ndim == 3 and (pixels == pixels[..., :1]).all():
        pixels = pixels[..., 0]
    if pixels.ndim == 3:
        n_colours = len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0))
        raise UserError(
            f"{path}: the mask stores its labels as {n_colours} colours; expected one number per pixel; write the mask "
            "again with 0 for the background and 1, 2, ... for the structures"
        )
    return pixels.astype(np.float32)


def count_channels(path: Path) -> int | None:
    """Return the number of channels of a 2-D image file: 1 for grey, 3 for colour. Only the header of the file is read.

    Args:
        path: the file.

    Returns:
        1 or 3; None if the header cannot be read.
    """
    try:
        with Image.open(path, formats=FORMATS) as image:
            return 1 if image.mode[0] in ("1", "L", "I", "F") and image.mode != "LAB" else 3
    except (*_READ_ERRORS, Image.DecompressionBombError):
        return None


def _open(path: Path, notices: list[str]) -> Image.Image:
    """Decode the whole image and rotate it as its EXIF data require."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large images (checked here) and unusual metadata (not used)
            with Image.open(path, formats=FORMATS) as image:
                _check_header(path, image, notices)
                image.load()
                return ImageOps.exif_transpose(image)
    except UserError:
        raise
    except Image.DecompressionBombError as error:
        raise UserError(f"{path}: {error}; expected at most {MAX_PIXELS:,} pixels; resize or crop it") from None
    except UnidentifiedImageError:
        raise UserError(
            f"{path}: the content is not a PNG, JPEG, BMP or TIFF image, whatever the file name says; copy the file "
            "again from its source"
        ) from None
    except _READ_ERRORS as error:
        raise UserError(f"{path}: the file is damaged or incomplete ({error}); copy it again from its source") from None


def _check_header(path: Path, image: Image.Image, notices: list[str]) -> None:
    """Check an image by its header, before its pixels are decoded.

    Images that are too large or have several pages raise a UserError; conversions are added to `notices`.
    """
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise UserError(
            f"{path}: the image has {width} x {height} pixels; expected at most {MAX_PIXELS:,}; resize or crop it"
        )
    if image.format == "TIFF" and (n_pages := getattr(image, "n_frames", 1)) > 1:
        raise UserError(f"{path}: the file has {n_pages} pages; expected one page; save a stack of slices "
                        "as NIfTI or MHA")
    if image.mode in ("RGB", "RGBA") and any(map(_has_16_bit_channels, getattr(image, "tile", ()))):
        notices.append("16-bit colour reduced to 8 bits")
    if image.getexif().get(_ORIENTATION, 1) != 1:  # for a PNG file, this decodes the pixels
        notices.append("rotated as its EXIF data require")


def _has_16_bit_channels(tile: Sequence[Any]) -> bool:
    """Return whether a tile of a Pillow plugin, (decoder, extents, offset, arguments), has 16 bits per channel."""
    return _RAW_MODE_16_BIT.search(_raw_mode(tile[3])) is not None


def _raw_mode(arguments: str | tuple) -> str:
    """Return the raw pixel mode from the arguments of a Pillow decoder: the only argument or the first one."""
    return arguments if isinstance(arguments, str) else "".join(map(str, arguments[:1]))


def _scale_to_8_bit(pixels: np.ndarray, path: Path, white: float | None, notices: list[str], hint: str) -> np.ndarray:
    """Scale a grey image (H, W) with more than 8 bits linearly, so that `white` becomes 255."""
    low, high = float(pixels.min()), float(pixels.max())
    if white is None:
        raise UserError(
            f"{path}: the image has more than 8 bits, with values from {low:g} to {high:g}; expected 8 bits; {hint}"
        )
    if low < 0 or high > white:
        raise UserError(
            f"{path}: the image has values from {low:g} to {high:g}; expected values from 0 to {white:g} "
            "(data.intensity_max); correct data.intensity_max or the image"
        )
    notices.append(f"scaled from 0-{white:g} to 0-255")
    return pixels * np.float32(255 / white)
