"""Find sites, image files and patients by the names of folders and files."""

from __future__ import annotations

import re
import time
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

from medfed.core.errors import UserError
from medfed.datasets.reading import SUFFIXES, suffix

_ESCAPE_OR_SET = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)  # such as \d or [a-z]
_REPEAT = re.compile(r"[*+]|\{\d*,\}")  # without a limit
SETTLED_NS = 2_000_000_000  # file systems store times of change with up to two seconds
MAX_PATH_PARTS = 100  # parts of the path of a folder
# Files with these suffixes may lie in an image folder; they are not read.
NON_IMAGE_SUFFIXES = (
    ".raw",
    ".zraw",
    ".txt",
    ".csv",
    ".tsv",
    ".json",
    ".yaml",
    ".md",
    ".xml",
    ".pdf",
    ".db",
    ".ini",
)
OUTLINE_SUFFIXES = (".json", ".xml", ".txt")  # in which drawing programs store outlines instead of masks
# Written by operating systems, or a table of contents of DICOM files; lower case.
SYSTEM_FILES = ("thumbs.db", "desktop.ini", "__macosx", "dicomdir")


@dataclass(frozen=True)
class Listing:
    """The image files (`files`), files of other formats except documents, and folders in a folder, in alphabetical
    order.

    Hidden files and folders, and the files of operating systems, are left out.
    """

    folder: Path
    files: tuple[Path, ...]
    unsupported: tuple[Path, ...]
    folders: Mapping[str, Path]


def composed(name: str) -> str:
    """Return a name in the Unicode form NFC, so that equal names compare as equal; macOS stores "ü" in two parts."""
    return unicodedata.normalize("NFC", name)


def existing_form(path: Path, start: Path) -> Path:
    """Return the existing path that differs from `path` in the Unicode form only, below the folder `start`.

    If `path` exists, or if there is no such file or more than one, return `path`.
    """
    if str(path).isascii() or path.exists() or not path.is_relative_to(start):
        return path
    place = start
    for part in path.relative_to(start).parts:
        fitting = (
            [other for other in place.iterdir() if composed(other.name) == composed(part)] if place.is_dir() else []
        )
        if len(fitting) != 1:
            return path
        place = fitting[0]
    return place


def is_ignored(path: Path, patterns: Sequence[str] = ()) -> bool:
    """Return whether a file or folder is left out: by its name, as hidden, or as a file of an operating system.

    In a pattern, a `*` stands for any characters; upper and lower case are not distinguished.
    """
    name = composed(path.name).casefold()
    return (
        name.startswith(".")
        or name in SYSTEM_FILES
        or any(fnmatch(name, composed(pattern).casefold()) for pattern in patterns)
    )


def leads_back(path: Path) -> bool:
    """Return whether a folder is a link to one of the folders in which it lies, so that a search never ends."""
    return path.is_symlink() and path.resolve() in {folder.resolve() for folder in path.absolute().parents}


def check_depth(folder: Path) -> None:
    """Raise UserError if the path of a folder has more than `MAX_PATH_PARTS` parts."""
    if len(folder.parts) > MAX_PATH_PARTS:
        raise UserError(
            f"{Path(*folder.parts[:8])}: folders lie inside each other in it, {MAX_PATH_PARTS} or more; expected a "
            "folder for each site; remove or move the inner folders"
        )


def list_folder(folder: Path, ignored_names: Sequence[str] = ()) -> Listing:
    """The image files, other files and folders in a folder, from a cache while the folder does not change."""
    check_depth(folder)
    return per_version(_list_folder, folder, tuple(ignored_names))


def per_version(cached: Any, folder: Path, ignored_names: tuple[str, ...]) -> Any:
    """Call a cached function of a folder; an earlier result is used only if the folder has not changed.

    The function has an `lru_cache` of its arguments: folder, time of change, and `ignored_names`.
    """
    changed_ns = folder.stat().st_mtime_ns
    if time.time_ns() - changed_ns < SETTLED_NS:  # a file that is added now may leave the time of change as it is
        return cached.__wrapped__(folder, changed_ns, ignored_names)
    return cached(folder, changed_ns, ignored_names)


@lru_cache(maxsize=1 << 12)
def _list_folder(folder: Path, _changed_ns: int, ignored_names: tuple[str, ...]) -> Listing:
    """List a folder once per version: the search for sites, images and masks asks about 40 times."""
    paths = sorted(folder.iterdir(), key=lambda path: path.name)
    paths = [path for path in paths if not is_ignored(path, ignored_names)]
    folders = {path.name: path for path in paths if path.is_dir()}
    paths = [path for path in paths if path.name not in folders or not leads_back(path)]
    folders = {path.name: path for path in paths if path.name in folders}
    files = [path for path in paths if path.name not in folders and not path.name.lower().endswith(NON_IMAGE_SUFFIXES)]
    images = tuple(path for path in files if suffix(path))
    return Listing(folder, images, tuple(path for path in files if not suffix(path)), folders)


def count_images(folder: Path, ignored_names: Sequence[str] = ()) -> int:
    """Return the number of image files in a folder and all folders inside it."""
    listing = list_folder(folder, ignored_names)
    return len(listing.files) + sum(count_images(inner, ignored_names) for inner in listing.folders.values())


def unsupported_problems(listing: Listing, suggest_keys: bool = False) -> list[str]:
    """Return one sentence for each kind of files in a folder that cannot be read."""
    by_ending: dict[str, list[Path]] = {}
    for path in listing.unsupported:
        by_ending.setdefault(path.suffix.lower(), []).append(path)
    return [
        f"{paths[0]}: this file format is not supported{_others(paths, ending)}; expected {', '.join(SUFFIXES)}; "
        f"convert or remove the file{'s' if len(paths) > 1 else ''}"
        + (f", or leave out such files with data.ignored_names: ['*{ending}']" if suggest_keys and ending else "")
        for ending, paths in by_ending.items()
    ]


def outline_files(folder: Path) -> str:
    """Return the number of files in a folder that may hold outlines instead of masks, such as "3 .xml files"; or ""."""
    endings = Counter(path.suffix.lower() for path in folder.iterdir() if path.is_file() and not is_ignored(path))
    counts = {ending: n for ending, n in endings.items() if ending in OUTLINE_SUFFIXES}
    return " and ".join(f"{n} {ending} file{'' if n == 1 else 's'}" for ending, n in sorted(counts.items()))


def stem_of(path: Path) -> str:
    """Return the name of an image file without its suffix, such as "a" for "a.nii.gz", in the form of `composed`."""
    return composed(path.name[: len(path.name) - len(suffix(path) or "")])


def site_folders(root: Path, names: Mapping[str, Sequence[str]]) -> dict[str, Path]:
    """Return the folders of a published collection's sites; `names` has the possible names of each site's folder.

    Sites without a folder are missing. UserError if two folders belong to the same site.
    """
    by_name: dict[str, list[Path]] = {}
    for path in sorted(root.iterdir()):
        by_name.setdefault(path.name.casefold(), []).extend([path] if path.is_dir() else [])
    by_site = {
        site: [path for name in folder_names for path in by_name.get(name.casefold(), [])]
        for site, folder_names in names.items()
    }
    for site, folders in by_site.items():
        if len(folders) > 1:
            both = " and ".join(map(str, folders))
            raise UserError(
                f"{both}: both folders are the site {site}; expected one folder; move one of the folders elsewhere"
            )
    return {site: folders[0] for site, folders in by_site.items() if folders}


def subfolders(folder: Path) -> dict[str, Path]:
    """Return the folders directly inside a folder, by name, in alphabetical order. Hidden folders are left out."""
    return {
        path.name: path
        for path in sorted(folder.iterdir())
        if path.is_dir() and path.name[0] != "." and not leads_back(path)
    }


def check_patient_pattern(pattern: str | None) -> None:
    """Raise ValueError if a regular expression is invalid, has no group for the patient, or could take hours."""
    if pattern is None:
        return
    shown = pattern if len(pattern) < 200 else f"{pattern[:200]}..."
    try:
        groups = re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"patient_pattern '{shown}' is not a valid regular expression: {error}") from None
    if groups < 1:
        raise ValueError(
            f"patient_pattern '{shown}' has no group; put parentheses around the part that identifies the patient"
        )
    if _has_nested_repeat(pattern):
        raise ValueError(
            f"patient_pattern '{shown}' has a repeat (* or +) inside a repeat, whose search may take hours; write it "
            "with one repeat, such as [a-z0-9]+"
        )


def _has_nested_repeat(pattern: str) -> bool:
    """Return whether a valid regular expression repeats a group without limit that has such a repeat in it."""
    plain = _ESCAPE_OR_SET.sub("x", pattern)
    holds_repeat = [False]  # of the whole pattern, then of each open group
    for place, character in enumerate(plain):
        if character == "(":
            holds_repeat.append(False)
        elif character == ")":
            inner = holds_repeat.pop()
            if inner and _REPEAT.match(plain, place + 1):
                return True
            holds_repeat[-1] |= inner
        elif _REPEAT.match(plain, place):
            holds_repeat[-1] = True
    return False


def extract_patient(name: str, pattern: str | None, path: Path, problems: list[str]) -> str:
    """Return the first group of a regular expression in the name of an image or case folder: the patient.

    "" if the pattern is None; "" and a sentence in `problems` if it does not match.
    """
    if pattern is None:
        return ""
    match = re.search(pattern, name)
    if not (match and match[1]):
        problems.append(
            f"{path}: data.patient_pattern '{pattern}' does not match the name '{name}'; correct the pattern or rename "
            "the file"
        )
        return ""
    return match[1]


def find_subfolder(folder: Path, name: str) -> Path | None:
    """Return the folder with a name in lower case directly inside another folder, in whatever case it is written, or
    None."""
    return next((path for path in sorted(folder.iterdir()) if path.name.casefold() == name and path.is_dir()), None)


def _others(paths: Sequence[Path], ending: str) -> str:
    """Return a clause about the files of one kind after the first one; "" if there are none."""
    kind = f"files ending in {ending}" if ending else "files without an ending"
    return f" (as those of {len(paths) - 1} other {kind} in this folder)" if len(paths) > 1 else ""


def lies_inside(folder: Path, file: Path) -> bool:
    """Return whether a file lies in a folder after all links were followed; a link to itself does, as reading reports
    it."""
    try:
        return file.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return True


def table_outside(path: Path, root: Path) -> UserError:
    """Return the error about a table or list of images that is a symbolic link out of the data."""
    return UserError(
        f"{path}: this table lies outside {root}, behind a symbolic link; expected a table inside; move it into that "
        "folder, or set data.follow_symlinks: true"
    )
