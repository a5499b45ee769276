"""Read PNG, JPEG, BMP, TIFF, GIF and PPM files with Pillow, as arrays with height before width."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, TiffImagePlugin

from medfed.core.errors import Problem, UserError
from medfed.images.problems import library_errors

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "GIF", "PPM")
MAX_COLOURS = 8  # in a message
_ORIENTATION = 0x0112  # EXIF tag
_PHOTOMETRIC, _MIN_IS_WHITE = 262, 0  # TIFF tag and value; Pillow inverts images of 8 bits, and no others
_RAW_MODE_16_BIT = re.compile(r";16[BLN]\b")  # Pillow's raw modes with 16 bits per channel; BMP's BGR;16 is not one


def read_image_file(path: Path, white: float | None, notices: list[str]) -> np.ndarray:
    """Read a 2-D image file as float32 in [0, 255]: (1, H, W) for grey or (3, H, W) for RGB, without an alpha channel.

    `white` is the stored value that becomes 255 if an image has more than 8 bits; None refuses such images.
    """
    image = _open(path, notices)
    if image.mode.startswith(("I", "F")):
        return _scale_to_8_bit(np.asarray(image, dtype=np.float32), path, white, notices)[None]
    if "transparency" in image.info or (image.mode.endswith("A") and image.getextrema()[-1] != (255, 255)):
        notices.append("alpha channel dropped")
        image.info.pop("transparency", None)
    if image.mode not in ("1", "L", "LA", "RGB", "RGBA"):
        notices.append(f"{'palette' if image.mode[0] == 'P' else image.mode} converted to RGB")
    with library_errors(path):
        pixels = np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))
    channels_first = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
    return channels_first.astype(np.float32, order="C")  # converted last, because float32 needs four times the memory


def read_label_file(path: Path, notices: list[str], two_colours: bool = False) -> np.ndarray:
    """Read the stored values of a mask, (H, W) float32: of a palette, the indices; of a GIF file, the colours as grey.

    With `two_colours`, a mask of black and one other colour has the values 0 and 255, also with a palette.
    """
    image = _open_mask(path, notices)
    if two_colours and image.mode == "P" and any((palette := image.getpalette() or [])[:3]):
        coloured = image.convert("RGB")
        shown = {colour for _, colour in coloured.getcolors() or ()}
        first = {(0, 0, 0)} if len(palette) == 3 else {*zip(*[iter(palette[:6])] * 3)}  # the others may only pad it
        if (0, 0, 0) in (shown if len(shown) > 1 else first):
            notices.append("palette that does not begin with black: its black is the background")
            image = coloured
    pixels = np.asarray(image)
    if pixels.ndim == 3 and (pixels == pixels[..., :1]).all():
        pixels = pixels[..., 0]
    if pixels.ndim == 3:
        pixels = pixels.astype(np.int32)
        numbers = (pixels[..., 0] << 16) + (pixels[..., 1] << 8) + pixels[..., 2]
        colours = np.unique(numbers)
        if two_colours and len(colours) == 2 and colours[0] == 0:
            notices.append(f"two-colour mask: #{colours[1]:06x} is the structure")
            return np.where(numbers == 0, np.float32(0), np.float32(255))
        listed = ", ".join(f"#{colour:06x}" for colour in colours[:MAX_COLOURS])
        found = f"the mask stores its labels as {len(colours)} colours, such as {listed}; expected one number per pixel"
        cure = "write the mask again with 0, 1, 2, ..., or name the colours in data.mask_colours (data.name: folder)"
        raise Problem("mask in colours", path, found, cure)
    return pixels.astype(np.float32)


def read_colours(path: Path, notices: list[str]) -> np.ndarray:
    """Read a mask, a palette as its colours, as grey values (H, W) or as red, green and blue (H, W, 3) uint8."""
    image = _open_mask(path, notices)
    if image.mode.startswith(("I", "F")):
        return np.asarray(image)
    return np.asarray(image.convert("L" if image.mode in ("1", "L") else "RGB"))


def _open_mask(path: Path, notices: list[str]) -> Image.Image:
    """Decode a mask and drop its alpha channel; a Problem if only that channel shows anything."""
    image = _open(path, notices, is_mask=True)
    image.info.pop("transparency", None)
    if image.mode not in ("LA", "PA", "RGBA"):
        return image
    *are_constant, is_alpha_constant = (len(set(channel.getextrema())) == 1 for channel in image.split())
    if all(are_constant) and not is_alpha_constant:
        found = "the shape of the mask is in the alpha channel, which is not read; expected it as grey values"
        cure = "save that channel as a grey PNG, with Pillow: Image.open(FILE).getchannel('A').save(FILE)"
        raise Problem("mask in the alpha channel", path, found, cure)
    notices.append("alpha channel of a mask dropped")
    return image.convert(image.mode[:-1])


def needed_channels(paths: Iterable[Path]) -> int:
    """Return the channels, 1 or 3, that files need without loss; reading reports those that are damaged."""
    for path in filter(Path.is_file, paths):
        with suppress(UserError), library_errors(path), Image.open(path, formats=FORMATS) as image:
            if image.mode[0] not in ("1", "L", "I", "F") or image.mode == "LAB":
                pixels = np.asarray(image.convert("RGB"))
                if not (pixels == pixels[..., :1]).all():
                    return 3
    return 1


def _open(path: Path, notices: list[str], is_mask: bool = False) -> Image.Image:
    """Decode the only page of an image and rotate it as its EXIF data require."""
    with library_errors(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about large images and unusual metadata (not used)
        with Image.open(path, formats=FORMATS) as image:
            if image.format in ("TIFF", "GIF") and (n_pages := getattr(image, "n_frames", 1)) > 1:
                found = f"the file has {n_pages} pages; expected one page"
                raise Problem("file with several pages", path, found, "save a stack of slices as NIfTI or MHA")
            is_tiff = isinstance(image, TiffImagePlugin.TiffImageFile)
            is_inverted = is_tiff and image.tag_v2.get(_PHOTOMETRIC) == _MIN_IS_WHITE
            if is_inverted and (is_mask or image.mode not in ("1", "L")):
                found = "the file stores white as 0 (MinIsWhite in the TIFF tag PhotometricInterpretation)"
                cure = "save it again, for example as PNG, and look at it"
                raise Problem("white stored as 0", path, f"{found}; expected black as 0", cure)
            if image.mode.startswith("RGB") and any(_RAW_MODE_16_BIT.search(str(tile[3])) for tile in image.tile):
                notices.append("16-bit colour reduced to 8 bits")
            if image.getexif().get(_ORIENTATION, 1) != 1:  # for a PNG file, this decodes the pixels
                notices.append("rotated as its EXIF data require")
            image.load()
            if is_mask and image.format == "GIF":  # programs number its colours in any order
                return image.convert("RGB")
            return ImageOps.exif_transpose(image)


def _scale_to_8_bit(pixels: np.ndarray, path: Path, white: float | None, notices: list[str]) -> np.ndarray:
    """Scale a grey image (H, W) with more than 8 bits linearly, so that `white` becomes 255."""
    low, high = float(pixels.min()), float(pixels.max())
    if white is None:
        found = f"the image has more than 8 bits, with values from {low:g} to {high:g}; expected 8 bits"
        cure = "save it with 8 bits, or set data.intensity_max to the value that means white (data.name: folder)"
        raise Problem("image with more than 8 bits", path, found, cure)
    if low < 0 or high > white:
        found = f"the image has values from {low:g} to {high:g}; expected values from 0 to {white:g}"
        raise Problem("values above data.intensity_max", path, found, "correct data.intensity_max or the image")
    notices.append(f"scaled from 0-{white:g} to 0-255")
    return pixels * np.float32(255 / white)
