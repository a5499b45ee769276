"""Read MHA, MHD and NRRD files with SimpleITK, after checks of what SimpleITK reads without a word."""

from __future__ import annotations

import math
import os
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from medfed.core.errors import Problem
from medfed.images import grids
from medfed.images.problems import library_errors

if TYPE_CHECKING:
    import SimpleITK as sitk

SUFFIXES = (".mha", ".mhd", ".nrrd")
MAX_HEADER_BYTES = 1 << 20  # of a header in text; those of scanners have a few thousand
MAX_NRRD_FIELD = 500  # characters; SimpleITK crashes at a few thousand in an unknown encoding or unit
_METAIMAGE_END = re.compile(rb"^[ \t]*ElementDataFile[^\n]*\n?", re.M)  # ends a header
_NRRD_END = re.compile(rb"\r?\n\r?\n")
_MILLIMETRES = re.compile(r"|\?|mm|millimet(er|re)s?")
_OTHER_LENGTHS = re.compile("[dcun\N{MICRO SIGN}]?m|microns?|in|inch|inches|(|deci|centi|micro|nano)met(er|re)s?")


def read(path: Path) -> tuple[np.ndarray, int, np.ndarray]:
    """Return the voxels of a file, (X, Y[, Z][, C]), the number of their axes in space, and the affine (4, 4)."""
    from medfed.transforms.simpleitk_reader import SimpleITKReader  # slow to import, and rarely needed

    data, header, start = data_file(path), *_header(path)
    if not data.is_file():
        found = f"the header names {data.name} as the file with the voxels, which does not exist"
        raise Problem("file without its voxels", path, found, "copy that file into the same folder")
    _check_units(path, header)
    opened = _read_information(path)
    grids.check_size(path, math.prod(opened.GetSize()) * opened.GetNumberOfComponents())
    is_compressed = _field(header, "CompressedData").lower() == "true" or _field(header, "encoding").lower() in (
        "gz",
        "gzip",
    )
    if is_compressed and not _field(header, "line ?skip"):
        with library_errors(data):  # SimpleITK returns other voxels for almost each flipped bit of an MHA file
            zlib.decompress(data.read_bytes()[start if data == path else 0 :], wbits=47)  # zlib or gzip
    elif _field(header, "encoding").lower() in ("", "raw") and not is_compressed:
        _check_length(data, data.stat().st_size - (start if data == path else 0), opened)
    with library_errors(path):
        reader = SimpleITKReader()
        voxels, properties = reader.get_data(reader.read(path))
    grids.check_affine(path, properties["affine"])
    return voxels, len(properties["spatial_shape"]), properties["affine"]


def _check_length(path: Path, n_bytes: int, opened: sitk.ImageFileReader) -> None:
    """Raise a Problem if a file has fewer bytes than its voxels, which are not compressed; `opened` is its header."""
    import SimpleITK as sitk

    n_components = opened.GetNumberOfComponents()
    pixel = sitk.Image([1, 1], opened.GetPixelID(), n_components if n_components > 1 else 0)
    expected = math.prod(opened.GetSize()) * n_components * pixel.GetSizeOfPixelComponent()
    if n_bytes < expected:
        found = f"the file has {n_bytes:,} bytes of voxels; expected {expected:,} bytes by the header"
        raise Problem("file of another length", path, found, "copy it again from its source")


def data_file(path: Path) -> Path:
    """Return the file that contains the voxels of an image: the image file, or the one that a detached header names.

    A Problem if the header names several files, or one in another folder.
    """
    if not path.name.lower().endswith(SUFFIXES):
        return path
    header, _ = _header(path)
    name = _field(header, "data ?file") or _field(header, "ElementDataFile")
    if name.lower() in ("", "local"):
        return path
    name = os.fsdecode(name.encode("latin-1"))
    if Path(name).name != name or name.startswith("LIST") or "%" in name:
        found = f"the header gives the voxels as '{name}' (data file); expected the name of one file in the same folder"
        raise Problem("voxels in another folder", path, found, "save the image as a single file")
    return path.with_name(name)


def _header(path: Path) -> tuple[str, int]:
    """Return the header of a file in text, and the position in bytes at which it ends."""
    with open(path, "rb") as file:
        content = file.read(MAX_HEADER_BYTES)
    end = (_NRRD_END if path.name.lower().endswith(".nrrd") else _METAIMAGE_END).search(content)
    n_bytes = end.end() if end else len(content)
    return content[:n_bytes].decode("latin-1"), n_bytes


def _field(header: str, key: str) -> str:
    """Return the value of `key: value` (NRRD) or `key = value` (MetaImage) in a header; "" if it is missing."""
    found = re.search(rf"^[ \t]*{key}[ \t]*[:=](?!=)[ \t]*(.*?)[ \t\r]*$", header, re.M | re.I)
    return found[1] if found else ""


def _check_units(path: Path, header: str) -> None:
    """Raise a Problem if a header gives lengths in another unit than millimetres, which SimpleITK would not convert."""
    for key, pattern, fits in (
        ("DistanceUnits", "(.+)", True),
        ("space ?units", '"([^"]*)"', True),
        ("units", '"([^"]*)"', False),  # of the axes, also of time and of values
    ):
        for unit in re.findall(pattern, _field(header, key)):
            lower = unit.strip().lower()
            if not _MILLIMETRES.fullmatch(lower) if fits else _OTHER_LENGTHS.fullmatch(lower):
                raise grids.other_unit(path, f"the unit '{unit}'", key.replace("?", ""))


def _read_information(path: Path) -> sitk.ImageFileReader:
    """Return a reader that has read only the header of the file."""
    import SimpleITK as sitk

    from medfed.transforms.simpleitk_reader import image_io

    if path.name.lower().endswith(".nrrd"):
        _check_field_lengths(path)
    reader = sitk.ImageFileReader()
    reader.SetImageIO(image_io(path))
    reader.SetFileName(str(path))
    with library_errors(path):
        reader.ReadImageInformation()
    return reader


def _check_field_lengths(path: Path) -> None:
    """Raise a Problem if a field of an NRRD header is so long that SimpleITK crashes; `key:=value` is no such field."""
    fields = re.findall(r"^(?!#)[^:\n]*:(?!=).*$", _header(path)[0], re.M)
    if (longest := max(map(len, fields), default=0)) > MAX_NRRD_FIELD:
        found = f"the header has a field of {longest:,} characters; expected at most {MAX_NRRD_FIELD}"
        raise Problem("damaged header", path, found, "save the image again")
