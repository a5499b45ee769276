"""What the name or the path of a file says: whether it is read, and whether it is the same as another one."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from medfed.images.reading import suffix

DOCUMENT_SUFFIXES = (  # ends of the names of files that hold no image
    ".txt .csv .tsv .json .yaml .md .xml .pdf .db .ini .cfg .xls .xlsx .doc .docx .html .py readme license changes"
).split()
VOXEL_SUFFIXES = (".raw", ".zraw")  # files with the voxels of a header beside them
# Written by operating systems, or a table of contents of DICOM files; lower case.
SYSTEM_FILES = ("thumbs.db", "desktop.ini", "__macosx", "dicomdir")


def composed(name: str) -> str:
    """Return a name in the Unicode form NFC, so that equal names compare as equal; macOS stores "ü" in two parts."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def folded(name: str) -> str:
    """Return a name in which upper and lower case, and Unicode forms, make no difference: "dog" for "DOG"."""
    return composed(name).casefold()


def is_ignored(name: str, patterns: Sequence[str] = ()) -> bool:
    """Return whether a file or folder is hidden, of an operating system, or fits one of the patterns (`fits`)."""
    own = folded(name)
    return own.startswith(".") or own in SYSTEM_FILES or any(fits(name, pattern) for pattern in patterns)


def fits(name: str, pattern: str) -> bool:
    """Return whether a name fits a pattern, in which only `*` has a meaning, regardless of case."""
    return fnmatchcase(folded(name), folded(pattern).replace("[", "[[]").replace("?", "[?]"))


def leads_back(path: Path) -> bool:
    """Return whether a folder is a link to one of the folders in which it lies, so that a search never ends."""
    return path.is_symlink() and path.resolve() in {folder.resolve() for folder in path.absolute().parents}


def stem_of(path: Path | str) -> str:
    """Return the name of an image file without its suffix, such as "a" for "a.nii.gz", in the form of `composed`."""
    name = str(path).rpartition("/")[2]
    return composed(name[: len(name) - len(suffix(name) or "")])
