"""Read 2-D image files (PNG, JPEG, BMP, TIFF, GIF) with Pillow, as arrays with height before width.

MONAI's own reader returns width before height.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, TiffImagePlugin, UnidentifiedImageError

from medfed.core.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif")
FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "GIF")
TWO_COLOURS = "two-colour mask:"  # start of the notice about such a mask
MAX_COLOURS = 8  # of a mask with one colour for each structure; more mean soft edges, or JPEG
MAX_PIXELS = 50_000_000  # 600 MB as RGB in float32; the largest photographs of eyes and skin have 36 million
MAX_COUNTED_PAGES = 100
READ_ERRORS = (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError)  # that damaged files raise in Pillow
MAX_SCANS = 64  # of a JPEG file, with its previews; a progressive one has about 10
_ORIENTATION = 0x0112  # EXIF tag
_PHOTOMETRIC, _MIN_IS_WHITE = 262, 0  # TIFF tag and value; Pillow inverts images of 8 bits, and no others
_START_OF_SCAN = b"\xff\xda"
_RAW_MODE_16_BIT = re.compile(r";16[BLN]$")  # Pillow's raw modes with 16 bits per channel; BMP's BGR;16 is not one


def read_image_file(
    path: Path, white: float | None, notices: list[str], hint: str = "save it as 8-bit grey or RGB"
) -> np.ndarray:
    """Read a 2-D image file as float32 in [0, 255]: (1, H, W) for grey or (3, H, W) for RGB.

    The image is rotated as its EXIF data require, and an alpha channel is dropped; `notices` says so. `white` is the
    stored value that means white in images with more than 8 bits; None refuses these, with `hint` in the message.
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


def read_label_file(path: Path, notices: list[str], two_colours: bool = False, hint: str = "") -> np.ndarray:
    """Read a mask from a 2-D image file as its stored values, (H, W) float32: of a palette, the indices; of a GIF file,
    the grey values that it shows.

    It is rotated as its EXIF data require, and an alpha channel is dropped; `notices` says so. With `two_colours`, a
    mask of two colours, one of them black, has the values 0 and 255; other colours are refused, with `hint` in the
    message.
    """
    image = _open(path, notices, is_mask=True)
    pixels = np.asarray(image)
    if image.mode in ("LA", "PA", "RGBA"):
        _check_alpha(path, image)
        notices.append("alpha channel of a mask dropped")
        pixels = pixels[..., :-1]
    if pixels.ndim == 3 and (pixels == pixels[..., :1]).all():
        pixels = pixels[..., 0]
    if pixels.ndim == 3:
        pixels = pixels.astype(np.int32)
        numbers = (pixels[..., 0] << 16) + (pixels[..., 1] << 8) + pixels[..., 2]
        colours = np.unique(numbers)
        if two_colours and len(colours) == 2 and colours[0] == 0:
            notices.append(f"{TWO_COLOURS} #{colours[1]:06x} is the structure")
            return np.where(numbers == 0, np.float32(0), np.float32(255))
        listed = ", ".join(f"#{colour:06x}" for colour in colours[:MAX_COLOURS])
        raise UserError(
            f"{path}: the mask stores its labels as {len(colours)} colours; expected one number per pixel; write the "
            "mask again with 0 for the background and 1, 2, ... for the structures"
            + (f"{hint} {listed}" if hint and len(colours) <= MAX_COLOURS else hint.rstrip(":"))
        )
    return pixels.astype(np.float32)


def read_colours(path: Path, notices: list[str]) -> np.ndarray:
    """Read a mask from a 2-D image file as grey values (H, W), not scaled, or as red, green and blue (H, W, 3) uint8.

    A palette is converted to the colours that it shows. UserError if the mask has its shape in the alpha channel.
    """
    image = _open(path, notices, is_mask=True)
    if image.mode.startswith(("I", "F")):
        return np.asarray(image)
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        if image.mode in ("LA", "PA", "RGBA"):
            _check_alpha(path, image)
        notices.append("alpha channel of a mask dropped")
        image.info.pop("transparency", None)
    return np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))


def _check_alpha(path: Path, image: Image.Image) -> None:
    """Raise UserError if a mask has a single colour, and its shape in the alpha channel."""
    *are_constant, is_alpha_constant = (len(set(channel.getextrema())) == 1 for channel in image.split())
    if all(are_constant) and not is_alpha_constant:
        raise UserError(
            f"{path}: all pixels of the mask have the same colour, and its shape is in the alpha channel, which is not "
            "read; expected the shape as grey values; save the alpha channel as a grey PNG, for example with Pillow: "
            "Image.open(FILE).getchannel('A').save(FILE)"
        )


def stored_size(path: Path) -> tuple[int, int]:
    """Return the height and width of an image by its header, without the rotation that its EXIF data require."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(path, formats=FORMATS) as image:
            return image.height, image.width


def needed_channels(paths: Iterable[Path]) -> int:
    """Return the channels, 1 or 3, that 2-D image files need without loss.

    A palette of greys, and a colour image whose three channels are equal, are grey. The pixels of colour files are read
    until one is in colour; of the others, only headers. If all images have a single colour, the way they are stored
    counts.
    """
    has_grey_files = has_colour_files = is_grey = False
    for path in filter(Path.is_file, paths):  # to open a pipe would wait for another program
        try:
            with Image.open(path, formats=FORMATS) as image:
                if image.mode[0] in ("1", "L", "I", "F") and image.mode != "LAB":
                    has_grey_files = True
                    continue
                has_colour_files = True
                if image.width * image.height > MAX_PIXELS:  # reading the file reports it
                    continue
                _check_scans(path, image)
                pixels = np.asarray(image.convert("RGB"))
        except (*READ_ERRORS, Image.DecompressionBombError):
            continue
        if not (pixels == pixels[..., :1]).all():
            return 3
        is_grey |= bool(pixels.min() < pixels.max())
    return 3 if has_colour_files and not is_grey and not has_grey_files else 1


def _open(path: Path, notices: list[str], is_mask: bool = False) -> Image.Image:
    """Decode the whole image and rotate it as its EXIF data require."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large images (checked here) and unusual metadata (not used)
            with Image.open(path, formats=FORMATS) as image:
                _check_header(path, image, notices, is_mask)
                image.load()
                if is_mask and image.format == "GIF":  # programs number its colours in any order
                    return image.convert("RGB")
                return ImageOps.exif_transpose(image)
    except UserError:
        raise
    except Image.DecompressionBombError as error:
        raise UserError(f"{path}: {error}; expected at most {MAX_PIXELS:,} pixels; resize or crop it") from None
    except UnidentifiedImageError:
        raise UserError(
            f"{path}: the content is not a PNG, JPEG, BMP, TIFF or GIF image, whatever the file name says; copy the "
            "file again from its source"
        ) from None
    except READ_ERRORS as error:
        raise UserError(f"{path}: the file is damaged or incomplete ({error}); copy it again from its source") from None


def _check_header(path: Path, image: Image.Image, notices: list[str], is_mask: bool) -> None:
    """Check an image by its header, before its pixels are decoded; conversions are added to `notices`.

    Images that are too large, have several pages or many scans, or would be read with exchanged values are refused.
    """
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise UserError(
            f"{path}: the image has {width} x {height} pixels; expected at most {MAX_PIXELS:,}; resize or crop it"
        )
    if image.format in ("TIFF", "GIF") and (n_pages := _n_pages(image)) > 1:
        n_or_more = f"{n_pages} or more" if n_pages == MAX_COUNTED_PAGES else n_pages
        raise UserError(
            f"{path}: the file has {n_or_more} pages; expected one page; save a stack of slices as NIfTI or MHA"
        )
    is_inverted = isinstance(image, TiffImagePlugin.TiffImageFile) and image.tag_v2.get(_PHOTOMETRIC) == _MIN_IS_WHITE
    if is_inverted and (is_mask or image.mode not in ("1", "L")):
        raise UserError(
            f"{path}: the file stores white as 0 (MinIsWhite in the TIFF tag PhotometricInterpretation), "
            + ("so that structure and background may be exchanged" if is_mask else "and has more than 8 bits")
            + "; expected black as 0; save it again, for example as PNG, and look at it"
        )
    _check_scans(path, image)
    if image.mode in ("RGB", "RGBA") and any(map(_has_16_bit_channels, getattr(image, "tile", ()))):
        notices.append("16-bit colour reduced to 8 bits")
    if image.getexif().get(_ORIENTATION, 1) != 1:  # for a PNG file, this decodes the pixels
        notices.append("rotated as its EXIF data require")


def _check_scans(path: Path, image: Image.Image) -> None:
    """Raise UserError if a JPEG file has very many scans, each of which is decoded over the whole image."""
    if image.format not in ("JPEG", "MPO"):
        return
    n_scans, end = 0, b""
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            n_scans += (end + chunk).count(_START_OF_SCAN)
            end = chunk[-1:]
    if n_scans > MAX_SCANS:
        raise UserError(
            f"{path}: the file has {n_scans:,} JPEG scans; expected at most {MAX_SCANS}; save the image again"
        )


def _n_pages(image: Image.Image) -> int:
    """Return the number of pages of a file, counted up to `MAX_COUNTED_PAGES`; the first page stays open."""
    n_pages = 1
    try:
        while n_pages < MAX_COUNTED_PAGES:
            image.seek(n_pages)
            n_pages += 1
    except EOFError:
        pass
    image.seek(0)
    return n_pages


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
