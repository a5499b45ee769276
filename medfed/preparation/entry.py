"""A case of a downloaded collection: its name, its site, and the files that are written for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """One case of a download.

    Args:
        site: as the dataset calls it.
        name: of the case in the download, for messages.
        files: returns the content of each file by its path in the output folder; it is called once, and raises
            UserError if the case cannot be used. None for a case that is left out.
        reason: why the case is left out, without its name, so that equal reasons can be counted.
    """

    site: str
    name: str
    files: Callable[[], Mapping[str, bytes]] | None = None
    reason: str = ""


@dataclass(frozen=True)
class Download:
    """What one of the collections contains in a folder; `notes` are sentences that a user must know."""

    title: str
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()


def walk(source: Path) -> Iterator[Path]:
    """Yield a folder and those in it, at every depth, in a fixed order, without hidden and system folders.

    Symbolic links are followed only at the top.
    """
    for folder, names, _ in os.walk(source):
        names[:] = sorted(name for name in names if not name.startswith(".") and name != "__MACOSX")
        yield Path(folder)


def files_in(folder: Path) -> list[Path]:
    """Files directly in a folder, in alphabetical order, without hidden files."""
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
