"""Find out which collections lie in folders, write their cases, and count what was written and left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from medfed.core.errors import Problem, UserError
from medfed.core.files import write_atomically
from medfed.core.registry import suggestion
from medfed.datasets.base import Progress
from medfed.datasets.walk import walk
from medfed.preparation import fundus, prostate
from medfed.preparation.collection import Collection, FoundCase

COLLECTIONS = {"prostate": prostate.COLLECTIONS, "fundus": fundus.COLLECTIONS}
MAX_NAMES = 20  # cases that the summary names for one reason


def prepare(dataset: str, sources: Sequence[Path], out: Path, progress: Progress | None = None) -> pd.DataFrame:
    """Write the downloads in `sources` to a folder in the layout that a dataset ("prostate" or "fundus") reads.

    No file is overwritten. One that exists with the same content is accepted, so that an interrupted preparation can be
    started again. UserError for other content, if a source contains no collection, or if no case could be written.

    Returns:
        one row for each case: `collection`, `site`, `case`, `status` ("written", "existing" or "left out"), `reason`.
    """
    if dataset not in COLLECTIONS:
        raise UserError(f"no preparation of '{dataset}'. {suggestion(dataset, COLLECTIONS)}")
    cases = [case for source in sources for case in _find(dataset, source)]
    rows = []
    for collection, case in progress(cases) if progress else cases:
        new_files, reason = dict[str, bytes](), ""
        try:
            new_files = collection.new_files(case)
        except UserError as error:
            reason = str(error)
        status = "left out" if reason else "written" if _write(out, new_files) else "existing"
        rows.append((collection.title, collection.site(case[0]), case[0], status, reason))
    summary = pd.DataFrame(rows, columns=["collection", "site", "case", "status", "reason"])
    if (summary["status"] == "left out").all():
        found = f"no case could be used; the first, {rows[0][2]}, was left out: {rows[0][4]}"
        raise Problem("no usable case", sources[0], found, "download the collection again")
    return summary


def format_summary(cases: pd.DataFrame) -> str:
    """Return a table of the sites, the reasons for what was left out, and the notes of the collections."""
    counts = pd.crosstab([cases["collection"], cases["site"]], cases["status"])
    counts = counts.reindex(columns=["written", "existing", "left out"], fill_value=0).reset_index()
    lines = [counts.to_string(index=False)]
    for (site, reason), left_out in cases[cases["reason"] != ""].groupby(["site", "reason"], sort=False)["case"]:
        more = f" and {len(left_out) - MAX_NAMES} more" if len(left_out) > MAX_NAMES else ""
        lines.append(f"left out: {site}: {len(left_out)} x {reason} ({', '.join(left_out[:MAX_NAMES])}{more})")
    collections = [
        one for of_dataset in COLLECTIONS.values() for one in of_dataset if one.title in set(cases["collection"])
    ]
    return "\n".join([*lines, *dict.fromkeys(f"note: {note}" for one in collections for note in one.notes)])


def _find(dataset: str, source: Path) -> list[tuple[Collection, FoundCase]]:
    """The cases of the collections in one source; a Problem if there is none."""
    if not source.is_dir():
        found = "there is no such folder; expected a folder with an unpacked download"
        raise Problem("no folder", source, found, "unpack it first, or correct the path")
    files = walk(source.resolve())
    cases = [(collection, case) for collection in COLLECTIONS[dataset] for case in collection.find(files)]
    if not cases:
        names = sorted(path.name for path in source.iterdir())
        listed = ", ".join(names[:6]) + (f", ... ({len(names)} entries)" if len(names) > 6 else "")
        layouts = "; ".join(f"{collection.title}: {collection.layout}" for collection in COLLECTIONS[dataset])
        found = f"found {listed or 'nothing'}; expected one of these downloads: {layouts}"
        raise Problem("no download", source, found, "unpack the archives, or correct the path")
    return cases


def _write(out: Path, new_files: Mapping[str, bytes]) -> bool:
    """Write the files of a case, all of them or none; return whether one of them is new."""
    new = {out / name: content for name, content in new_files.items() if not (out / name).exists()}
    for name, content in sorted(new_files.items()):
        if out / name not in new and (out / name).read_bytes() != content:
            found = "the file exists with another content; nothing is overwritten"
            raise Problem("other content", out / name, found, "choose another output folder, or remove this one")
    try:
        for path, content in new.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
    except BaseException:  # also after Ctrl-C, no image stays without its mask
        for path in new:
            path.unlink(missing_ok=True)
        raise
    return bool(new)
