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
        site: the site to which the case belongs, as the dataset calls it.
        name: name of the case in the download, for messages.
        files: function that returns the files of the case: the path of each file relative to the output folder, and its
            content. It is called once, and raises UserError if the case cannot be used. None for a case that is left
            out.
        reason: why the case is left out, without the name of the case, so that equal reasons can be counted; "" for a
            case that is written.
    """

    site: str
    name: str
    files: Callable[[], Mapping[str, bytes]] | None = None
    reason: str = ""


@dataclass(frozen=True)
class Download:
    """What one of the collections contains in a folder.

    Args:
        title: name of the collection.
        entries: its cases.
        notes: what a user must know about these files, one sentence each.
    """

    title: str
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()


def walk(source: Path) -> Iterator[Path]:
    """Yield all folders in a folder, at every depth, and the folder itself, in a fixed order.

    Hidden folders and folders that an operating system wrote are left out. Symbolic links are followed only at the top.

    Args:
        source: an existing folder.
    """
    for folder, names, _ in os.walk(source):
        names[:] = sorted(name for name in names if not name.startswith(".") and name != "__MACOSX")
        yield Path(folder)


def files_in(folder: Path) -> list[Path]:
    """Return the files directly in a folder, in alphabetical order, without hidden files."""
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
