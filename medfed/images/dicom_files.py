"""Find the DICOM files in a folder, and say by the first bytes of each which kind of object it holds.

DICOM files have any name: `IM0001.dcm`, `IM-0001-0001`, `I10`, or the object's number with dots.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from medfed.images.file_names import DOCUMENT_SUFFIXES, VOXEL_SUFFIXES, is_ignored, leads_back
from medfed.images.reading import suffix

Kind = Literal["image", "segmentation", "other"]
SUFFIXES = (".dcm", ".dicom", ".ima")  # usual endings of DICOM files, lower case
MAX_DICOM_DEPTH = 8  # folders inside each other; also ends a loop of symbolic links
_PREFIX = "1.2.840.10008."
_SEGMENTATIONS = (_PREFIX + "5.1.4.1.1.66.4", _PREFIX + "5.1.4.1.1.66.7")
# Objects without an image: directories, waveforms, presentation states, reports, documents, plans, structure sets.
_NO_IMAGES = tuple(
    _PREFIX + start
    for start in (
        "1.3.10",
        "5.1.4.1.1.9.",
        "5.1.4.1.1.11.",
        "5.1.4.1.1.66",
        "5.1.4.1.1.88.",
        "5.1.4.1.1.104.",
        "5.1.4.1.1.481.",
    )
)
_LONG_TYPES = (b"OB", b"OW", b"OF", b"SQ", b"UN", b"UT", b"UC", b"UR")  # their length has four bytes


def kind_of(path: Path) -> Kind | None:
    """Return what a file holds by its first bytes: an image, a DICOM SEG object, or another one such as a report.

    None if it is no DICOM file, or has the name of another image format.
    """
    name = path.name.lower()
    if suffix(path) or name.endswith((*DOCUMENT_SUFFIXES, *VOXEL_SUFFIXES)):
        return None
    object_class = sop_class(path)
    if object_class is None:
        return "image" if name.endswith(SUFFIXES) and path.is_file() else None  # old files have no preamble
    if object_class in _SEGMENTATIONS:
        return "segmentation"
    return "other" if object_class.startswith(_NO_IMAGES) else "image"


def sop_class(path: Path) -> str | None:
    """Return the SOP class of a DICOM file, "" if its first bytes do not say it, or None if it is no DICOM file."""
    try:
        status = path.stat()
        # To open a pipe would wait for another program to write to it.
        return _sop_class(path, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None
    except OSError:
        return None


def files_of_kind(folder: Path, kind: Kind, ignored_names: Sequence[str] = ()) -> list[Path]:
    """Return the DICOM files of one kind in a folder and in the folders inside it, in the order of their names."""
    return [path for path in all_files(folder, ignored_names) if kind_of(path) == kind]


def holds_dicom(folder: Path, ignored_names: Sequence[str] = ()) -> bool:
    """Return whether a folder, or a folder inside it, holds a DICOM image."""
    return any(kind_of(path) == "image" for path in all_files(folder, ignored_names))


def all_files(folder: Path, ignored_names: Sequence[str] = (), depth: int = MAX_DICOM_DEPTH) -> Iterator[Path]:
    """Yield the files in a folder, in the order of their names, and then those of each folder inside it."""
    paths = [path for path in sorted(folder.iterdir()) if not is_ignored(path.name, ignored_names)]
    folders = {path: leads_back(path) for path in paths if path.is_dir()}  # a link that leads to itself is a file
    yield from (path for path in paths if path not in folders)
    for path, is_loop in folders.items():
        if depth and not is_loop:
            yield from all_files(path, ignored_names, depth - 1)


@lru_cache(maxsize=1 << 18)
def _sop_class(path: Path, _changed_ns: int) -> str | None:
    """Return the value of MediaStorageSOPClassUID, which the file's first group of elements holds."""
    with open(path, "rb") as file:
        start = file.read(2048)
    if start[128:132] != b"DICM":
        return None
    at = 132
    while start[at : at + 2] == b"\x02\x00":
        if start[at + 4 : at + 6] in _LONG_TYPES:
            value, length = at + 12, int.from_bytes(start[at + 8 : at + 12], "little")
        else:
            value, length = at + 8, int.from_bytes(start[at + 6 : at + 8], "little")
        if start[at + 2 : at + 4] == b"\x02\x00":
            return start[value : value + length].rstrip(b"\0 ").decode("latin-1")
        at = value + length
    return ""
