"""Find which patches of Camelyon17 exist on the disk: list each slide's folder once instead of querying each file."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from medfed.datasets.case import Case


class SlideFiles(NamedTuple):
    """Names of the files in a folder, and the names among them that are symbolic links."""

    names: frozenset[str]
    links: frozenset[str]


def existing_cases(cases: Iterable[Case], root: Path, follow_symlinks: bool) -> tuple[list[Case], list[str]]:
    """Select the patches of Camelyon17 whose image files exist on the disk. The files are not opened.

    Args:
        cases: the patches to search for, each with the path at which its image file should be.
        root: folder of the dataset.
        follow_symlinks: True accepts slide folders that lie outside `root`, behind a symbolic link. False leaves out
            the patches in such a folder and reports a problem.

    Returns:
        Two lists. The first contains the cases whose files exist. The second contains the problems: one sentence for
        each slide folder in which files are missing, or which lies outside `root` although `follow_symlinks` is False.
    """
    folders: dict[Path, list[Case]] = defaultdict(list)
    for case in cases:
        folders[case.image.parent].append(case)
    existing, problems = [], []
    home = root.resolve()
    for folder, expected in folders.items():
        if not (follow_symlinks or folder.resolve().is_relative_to(home)):
            problems.append(
                f"{folder}: this folder lies outside {root}, behind a symbolic link; move it into that folder, or set "
                "data.follow_symlinks: true"
            )
            continue
        names = _listing(str(folder)).names
        existing_here = [case for case in expected if case.image.name in names]
        if len(existing_here) < len(expected):
            problems.append(_missing_patches(folder, expected, names))
        existing += existing_here
    return existing, problems


def is_link(path: Path) -> bool:
    """Return whether a file is a symbolic link; False if it does not exist.

    The first call for a folder lists all its files. Later calls use this list from a cache, until `clear_listings`
    clears the cache.

    Args:
        path: the file.
    """
    return path.name in _listing(str(path.parent)).links


def clear_listings() -> None:
    """Clear the cache of file lists that `existing_cases` and `is_link` use.

    After this call, both functions list the folders again and notice files that were added or removed.
    """
    _listing.cache_clear()


@lru_cache(maxsize=64)
def _listing(folder: str) -> SlideFiles:
    try:
        with os.scandir(folder) as entries:
            is_link_by_name = {entry.name: entry.is_symlink() for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        is_link_by_name = {}
    links = frozenset(name for name, linked in is_link_by_name.items() if linked)
    return SlideFiles(frozenset(is_link_by_name), links)


def _missing_patches(folder: Path, expected: list[Case], names: frozenset[str]) -> str:
    """Describe in one sentence which of the expected patches are missing in a folder."""
    missing = [case.image.name for case in expected if case.image.name not in names]
    return (
        f"{folder}: {len(missing):,} of the {len(expected):,} patches that metadata.csv lists are missing, the first "
        f"is {missing[0]}; unpack the archive again, or remove the rows of these patches from metadata.csv"
    )
