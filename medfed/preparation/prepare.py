"""Find the cases of original collections in unpacked downloads, write them, and count what was written and left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from medfed.core.errors import Problem, UserError
from medfed.datasets.base import Progress
from medfed.datasets.walk import walk
from medfed.outputs.bundle.write import atomic_folder

FoundCase = tuple[str, dict[str, list[Path]]]  # the name of a case, and the paths of each of its parts
MAX_NAMES = 20  # cases that the summary names for one reason


@dataclass(frozen=True)
class Collection:
    """Where the files of an original collection lie, and how a case is converted.

    Each of the `parts` of a case, such as {"image": REGEX, "mask": REGEX}, has an expression that fits the end of a
    path, for a DICOM series that of its folder; its group `name` is the case. Upper and lower case are equal.
    `convert` returns the content of each new file by its path in the output folder, given the site, the name and the
    path of each part; it raises UserError if the case is left out.
    """

    title: str
    layout: str  # folders and files of the download, for messages
    parts: Mapping[str, str]
    site: Callable[[str], str]  # of a case, given its name
    convert: Callable[..., dict[str, bytes]]
    notes: tuple[str, ...]  # sentences that a user must know


def prepare(
    collections: Sequence[Collection], sources: Sequence[Path], out: Path, progress: Progress | None = None
) -> pd.DataFrame:
    """Write the cases of collections to the new folder; one row per case, with the reason if left out."""
    if out.exists():
        raise Problem("existing folder", out, "exists already", "remove it, or choose another output folder")
    cases = [case for source in sources for case in _find(collections, source)]
    rows = []
    with atomic_folder(out.resolve()) as folder:
        for collection, case in progress(cases) if progress else cases:
            reason = ""
            try:
                _write(folder, collection, case)
            except UserError as error:
                reason = str(error)
            rows.append((collection.title, collection.site(case[0]), case[0], reason))
        if all(reason for *_, reason in rows):
            found = f"no case could be used; the first, {rows[0][2]}, was left out: {rows[0][3]}"
            raise Problem("no usable case", sources[0], found, "download the collection again")
    return pd.DataFrame(rows, columns=["collection", "site", "case", "reason"])


def format_summary(collections: Sequence[Collection], cases: pd.DataFrame) -> str:
    """Return a table of the sites, the reasons for what was left out, and the notes of the collections."""
    status = cases["reason"].map(lambda reason: "left out" if reason else "written").rename("status")
    counts = pd.crosstab([cases["collection"], cases["site"]], status)
    counts = counts.reindex(columns=["written", "left out"], fill_value=0).reset_index()
    lines = [counts.to_string(index=False)]
    for (site, reason), left_out in cases[cases["reason"] != ""].groupby(["site", "reason"], sort=False)["case"]:
        more = f" and {len(left_out) - MAX_NAMES} more" if len(left_out) > MAX_NAMES else ""
        lines.append(f"left out: {site}: {len(left_out)} x {reason} ({', '.join(left_out[:MAX_NAMES])}{more})")
    used = [one for one in collections if one.title in set(cases["collection"])]
    return "\n".join([*lines, *dict.fromkeys(f"note: {note}" for one in used for note in one.notes)])


def _find(collections: Sequence[Collection], source: Path) -> list[tuple[Collection, FoundCase]]:
    """Return the cases in one source, without collections of which no case has some part; a Problem if none is left."""
    if not source.is_dir():
        found = "there is no such folder; expected a folder with an unpacked download"
        raise Problem("no folder", source, found, "unpack it first, or correct the path")
    files = walk(source.resolve())
    found_cases: list[tuple[Collection, FoundCase]] = []
    for collection in collections:
        cases: dict[str, FoundCase] = {}
        for place in (*files.images, *files.slices):
            for part, pattern in collection.parts.items():
                match = re.fullmatch(f"(?:.*/)?{pattern}", f"{files.root.name}/{place}", re.IGNORECASE)
                if match:
                    new = match["name"], {part: list[Path]() for part in collection.parts}
                    cases.setdefault(new[0].lower(), new)[1][part].append(files.root / place)
        if all(any(paths[part] for _, paths in cases.values()) for part in collection.parts):
            found_cases += [(collection, case) for _, case in sorted(cases.items())]
    if not found_cases:
        names = sorted(path.name for path in source.iterdir())
        listed = ", ".join(names[:6]) + (f", ... ({len(names)} entries)" if len(names) > 6 else "")
        layouts = "; ".join(f"{collection.title}: {collection.layout}" for collection in collections)
        found = f"found {listed or 'nothing'}; expected one of these downloads: {layouts}"
        raise Problem("no download", source, found, "unpack the archives, or correct the path")
    return found_cases


def _write(out: Path, collection: Collection, case: FoundCase) -> None:
    """Write the files of a case; UserError if the case is left out."""
    name, paths = case
    for part, of_part in paths.items():
        if len(of_part) != 1:
            raise UserError(f"{len(of_part)} files or series are its {part}" if of_part else f"no {part}")
    new_files = collection.convert(collection.site(name), name, *(path for [path] in paths.values()))
    if any((out / new).exists() for new in new_files):
        raise UserError("another case has the same name")
    for new, content in new_files.items():
        (out / new).parent.mkdir(parents=True, exist_ok=True)
        (out / new).write_bytes(content)
