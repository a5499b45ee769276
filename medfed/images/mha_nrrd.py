"""Read MHA, MHD and NRRD files with SimpleITK, after checks of what SimpleITK reads without a word."""

from __future__ import annotations

import math
import os
import re
import zlib
from pathlib import Path

import numpy as np

from medfed.core.errors import Problem
from medfed.images import grids
from medfed.images.problems import library_errors

SUFFIXES = (".mha", ".mhd", ".nrrd")
MAX_HEADER_BYTES = 1 << 20  # of a header in text; those of scanners have a few thousand
MAX_NRRD_FIELD = 500  # characters; SimpleITK crashes at a few thousand in an unknown encoding or unit
UNITS = ("?", "mm", "millimeter", "millimeters", "millimetre", "millimetres", "s", "sec", "ms")  # also of time
_METAIMAGE_END = re.compile(rb"^[ \t]*ElementDataFile[^\n]*\n?", re.M)  # ends a header
_NRRD_END = re.compile(rb"\r?\n\r?\n")


def read(path: Path) -> tuple[np.ndarray, int, np.ndarray]:
    """Return the voxels of a file, (X, Y[, Z][, C]), the number of their axes in space, and the affine (4, 4)."""
    import SimpleITK as sitk  # slow to import, and rarely needed

    from medfed.transforms.simpleitk_reader import SimpleITKReader, image_io

    data, header, start = data_file(path), *_header(path)
    units = " ".join(_field(header, key) for key in ("DistanceUnits", "space ?units", "units")).lower()
    for unit in re.findall(r'[^\s"]+', units):
        if unit not in UNITS:  # SimpleITK does not convert it
            raise grids.other_unit(path, f"the unit '{unit}'", "units")
    fields = re.findall(r"^(?!#)[^:\n]*:(?!=).*$", header, re.M)  # `key:=value` is no such field
    if path.name.lower().endswith(".nrrd") and (longest := max(map(len, fields), default=0)) > MAX_NRRD_FIELD:
        found = f"the header has a field of {longest:,} characters; expected at most {MAX_NRRD_FIELD}"
        raise Problem("damaged header", path, found, "save the image again")
    opened = sitk.ImageFileReader()
    opened.SetImageIO(image_io(path))
    opened.SetFileName(str(path))
    with library_errors(path):
        opened.ReadImageInformation()
    grids.check_size(path, math.prod(opened.GetSize()) * opened.GetNumberOfComponents())
    if _field(header, "CompressedData").lower() == "true" or _field(header, "encoding").lower() in ("gz", "gzip"):
        with library_errors(data):  # SimpleITK returns other voxels for almost each flipped bit of an MHA file
            zlib.decompress(data.read_bytes()[start if data == path else 0 :], wbits=47)  # zlib or gzip
    with library_errors(path):
        reader = SimpleITKReader()
        voxels, properties = reader.get_data(reader.read(path))
    grids.check_affine(path, properties["affine"])
    return voxels, len(properties["spatial_shape"]), properties["affine"]


def data_file(path: Path) -> Path:
    """Return the file that contains the voxels of an image: the image file, or the one that a detached header names."""
    if not path.name.lower().endswith(SUFFIXES):
        return path
    header, _ = _header(path)
    name = _field(header, "data ?file") or _field(header, "ElementDataFile")
    if name.lower() in ("", "local"):
        return path
    name = os.fsdecode(name.encode("latin-1"))
    if Path(name).name != name or not path.with_name(name).is_file():
        found = f"the header names '{name}' as the file with the voxels; expected one file in the same folder"
        raise Problem("file without its voxels", path, found, "copy it there, or save the image as a single file")
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
