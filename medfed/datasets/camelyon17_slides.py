"""Which patches of Camelyon17 are on disk: list each slide's folder once, instead of asking for each file."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from medfed.datasets.case import Case


class Listing(NamedTuple):
    """The names in a folder, and those of them that are links."""

    names: frozenset[str]
    links: frozenset[str]


def present(cases: Iterable[Case], root: Path, follow_symlinks: bool) -> tuple[list[Case], list[str]]:
    """The cases whose files are there, and a sentence for every folder that lacks some or lies behind a link.

    A folder outside `root` gives no cases unless links are followed. Files are not opened.
    """
    folders: dict[Path, list[Case]] = defaultdict(list)
    for case in cases:
        folders[case.image.parent].append(case)
    kept, problems = [], []
    home = root.resolve()
    for folder, wanted in folders.items():
        if not (follow_symlinks or folder.resolve().is_relative_to(home)):
            problems.append(
                f"{folder}: lies behind a link out of {root}; put it there, or set data.follow_symlinks: true"
            )
            continue
        names = _listing(str(folder)).names
        found = [case for case in wanted if case.image.name in names]
        if len(found) < len(wanted):
            problems.append(_lack(folder, wanted, names))
        kept += found
    return kept, problems


def is_link(path: Path) -> bool:
    """Whether a file is a link, by its folder's listing."""
    return path.name in _listing(str(path.parent)).links


def clear_listings() -> None:
    """Clear the cache of directory listings."""
    _listing.cache_clear()


@lru_cache(maxsize=64)
def _listing(folder: str) -> Listing:
    try:
        with os.scandir(folder) as entries:
            links = {entry.name: entry.is_symlink() for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        links = {}
    return Listing(frozenset(links), frozenset(name for name, is_one in links.items() if is_one))


def _lack(folder: Path, wanted: list[Case], names: frozenset[str]) -> str:
    missing = [case.image.name for case in wanted if case.image.name not in names]
    return (
        f"{folder}: lacks {len(missing):,} of the {len(wanted):,} patches that metadata.csv names, first {missing[0]}; "
        "unpack the archive again, or take their rows out of the table"
    )
