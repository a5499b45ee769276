"""An original collection: how its files are found in an unpacked download, and what is written for a case."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from medfed.core.errors import UserError
from medfed.datasets.walk import Files


@dataclass(frozen=True)
class Collection:
    """Where the files of an original collection lie, and how a case is converted.

    Args:
        layout: folders and files of the download, for messages.
        parts: what a case consists of, such as {"image": REGEX, "mask": REGEX}. An expression fits the end of a path,
            for a DICOM series that of its folder; its group `name` is the case. Upper and lower case are equal.
        site: returns the site of a case, given its name.
        convert: returns the content of each new file by its path in the output folder, given the site, the name and the
            path of each part. Raises UserError if the case is left out.
        notes: sentences that a user must know.
    """

    title: str
    layout: str
    parts: Mapping[str, str]
    site: Callable[[str], str]
    convert: Callable[..., dict[str, bytes]]
    notes: tuple[str, ...]

    def find(self, files: Files) -> list[Entry]:
        """Return the cases in a folder; none if a part of all of them is missing."""
        entries: dict[str, Entry] = {}
        for place in (*files.images, *files.slices):
            for part, pattern in self.parts.items():
                match = re.fullmatch(f"(?:.*/)?{pattern}", f"{files.root.name}/{place}", re.IGNORECASE)
                if match:
                    new = Entry(self, match["name"], {part: [] for part in self.parts})
                    entries.setdefault(new.name.lower(), new).paths[part].append(files.root / place)
        has_parts = (any(entry.paths[part] for entry in entries.values()) for part in self.parts)
        return [entry for _, entry in sorted(entries.items())] if all(has_parts) else []


@dataclass(frozen=True)
class Entry:
    """One case of a download: its name, and the paths that were found for each of its parts."""

    collection: Collection
    name: str
    paths: Mapping[str, list[Path]]

    @property
    def site(self) -> str:
        return self.collection.site(self.name)

    def convert(self) -> dict[str, bytes]:
        """Return the content of each new file by its path in the output folder; UserError if the case is left out."""
        for part, paths in self.paths.items():
            if len(paths) != 1:
                raise UserError(f"{len(paths)} files or series are its {part}" if paths else f"no {part}")
        return self.collection.convert(self.site, self.name, *(path for [path] in self.paths.values()))
