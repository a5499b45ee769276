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
    """Names of all files in a folder, and of the symbolic links among them."""

    names: frozenset[str]
    links: frozenset[str]


def existing_cases(cases: Iterable[Case], root: Path, follow_symlinks: bool) -> tuple[list[Case], list[str]]:
    """Return the patches whose image files exist, and one sentence for each slide folder with a problem.

    Problems are missing files, and a folder that lies outside `root` behind a link although `follow_symlinks` is False.
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
    """Return whether a file is a symbolic link, by a listing of its folder that is cached until `clear_listings`."""
    return path.name in _listing(str(path.parent)).links


def clear_listings() -> None:
    """Clear the cache of listings, so that files that were added or removed are noticed."""
    _listing.cache_clear()


@lru_cache(maxsize=64)
def _listing(folder: str) -> SlideFiles:
    """The names of the files in a folder of one slide; none if the folder does not exist."""
    try:
        with os.scandir(folder) as entries:
            is_link_by_name = {entry.name: entry.is_symlink() for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        is_link_by_name = {}
    links = frozenset(name for name, linked in is_link_by_name.items() if linked)
    return SlideFiles(frozenset(is_link_by_name), links)


def _missing_patches(folder: Path, expected: list[Case], names: frozenset[str]) -> str:
    """The problem that a folder lacks some of the expected patches, as a sentence."""
    missing = [case.image.name for case in expected if case.image.name not in names]
    return (
        f"{folder}: {len(missing):,} of the {len(expected):,} patches that metadata.csv lists are missing, the first "
        f"is {missing[0]}; unpack the archive again, or remove the rows of these patches from metadata.csv"
    )
