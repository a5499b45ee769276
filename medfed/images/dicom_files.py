"""Find the DICOM files in a folder, and say by the first bytes of each which kind of object it holds.

DICOM files have any name: `IM0001.dcm`, `IM-0001-0001`, `I10`, or the object's number with dots.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from medfed.images.file_names import DOCUMENT_SUFFIXES, VOXEL_SUFFIXES, is_ignored, leads_back
from medfed.images.reading import suffix

Kind = Literal["image", "segmentation", "other"]
SUFFIXES = (".dcm", ".dicom", ".ima")  # usual endings of DICOM files, lower case
_SEGMENTATIONS = (  # pydicom 3.0 does not know the name of label maps
    "Segmentation Storage",
    "Label Map Segmentation Storage",
    "1.2.840.10008.5.1.4.1.1.66.7",
)


def kind_of(path: Path) -> Kind | None:
    """Return what a DICOM file holds, by its first bytes; None for other files, and names of other image formats."""
    name = path.name.lower()
    if suffix(path) or name.endswith((*DOCUMENT_SUFFIXES, *VOXEL_SUFFIXES)) or not path.is_file():
        return None  # to open a pipe would wait for another program to write to it
    try:
        object_class = _object_class(path, path.stat().st_mtime_ns)
    except OSError:
        return None
    if object_class is None:
        return "image" if name.endswith(SUFFIXES) else None  # old files have no preamble
    if object_class in _SEGMENTATIONS:
        return "segmentation"
    words = object_class.split()
    return "other" if "Storage" in words and ("Image" not in words or "RT" in words) else "image"


def files_of_kind(folder: Path, kind: Kind, ignored_names: Sequence[str] = ()) -> list[Path]:
    """Return the DICOM files of one kind in a folder and in the folders inside it, in the order of their names."""
    files = []
    for inner, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not leads_back(Path(inner, name)))
        folders[:] = [name for name in folders if not is_ignored(name, ignored_names)]
        files += [Path(inner, name) for name in sorted(names) if not is_ignored(name, ignored_names)]
    return [path for path in files if kind_of(path) == kind]


@lru_cache(maxsize=1 << 18)
def _object_class(path: Path, _changed_ns: int) -> str | None:
    """Return the name of a DICOM file's SOP class, such as "MR Image Storage"; None if it is no DICOM file."""
    with open(path, "rb") as file:
        if file.read(132)[128:] != b"DICM":
            return None
    from pydicom.filereader import read_file_meta_info  # slow to import, and rarely needed

    try:
        return str(read_file_meta_info(path).MediaStorageSOPClassUID.name)
    except Exception:  # pydicom raises many types of errors for damaged files; reading the image reports them
        return ""
