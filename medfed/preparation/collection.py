"""An original collection: how its files are found in an unpacked download, and what is written for a case."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from medfed.core.errors import UserError
from medfed.datasets.walk import Files

FoundCase = tuple[str, dict[str, list[Path]]]  # the name of a case, and the paths of each of its parts


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

    def find(self, files: Files) -> list[FoundCase]:
        """Return the cases in a folder; none if a part of all of them is missing."""
        cases: dict[str, FoundCase] = {}
        for place in (*files.images, *files.slices):
            for part, pattern in self.parts.items():
                match = re.fullmatch(f"(?:.*/)?{pattern}", f"{files.root.name}/{place}", re.IGNORECASE)
                if match:
                    new = match["name"], {part: list[Path]() for part in self.parts}
                    cases.setdefault(new[0].lower(), new)[1][part].append(files.root / place)
        has_parts = (any(paths[part] for _, paths in cases.values()) for part in self.parts)
        return [case for _, case in sorted(cases.items())] if all(has_parts) else []

    def new_files(self, case: FoundCase) -> dict[str, bytes]:
        """Return the content of each new file by its path in the output folder; UserError if the case is left out."""
        name, paths = case
        for part, of_part in paths.items():
            if len(of_part) != 1:
                raise UserError(f"{len(of_part)} files or series are its {part}" if of_part else f"no {part}")
        return self.convert(self.site(name), name, *(path for [path] in paths.values()))
