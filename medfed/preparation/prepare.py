"""Find out which collections lie in folders, write their cases, and count what was written and left out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from medfed.core import files
from medfed.core.errors import Problem, UserError
from medfed.core.registry import suggestion
from medfed.datasets.base import Progress
from medfed.preparation import drishti_gs, i2cvb, nci_isbi, promise12, refuge, rim_one
from medfed.preparation.entry import Download


class Collection(Protocol):
    """What a file of this package offers."""

    TITLE: str
    LAYOUT: str  # folders and files of the download

    def find(self, source: Path) -> Download | None:
        """The cases of the collection in a folder; None if the folder does not contain the collection."""


COLLECTIONS: Mapping[str, tuple[Collection, ...]] = {
    "prostate": (promise12, nci_isbi, i2cvb),
    "fundus": (drishti_gs, rim_one, refuge),
}
MAX_NAMES = 20  # cases that the summary names for one reason
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar")


class Outcome(NamedTuple):
    """What became of a case of a download."""

    collection: str
    site: str
    case: str
    status: Literal["written", "existing", "left out"]
    reason: str = ""


@dataclass(frozen=True)
class Summary:
    """Result of a preparation: what became of each case, and the notes of the downloads."""

    outcomes: list[Outcome]
    notes: list[str]


def prepare(dataset: str, sources: Sequence[Path], out: Path, progress: Progress | None = None) -> Summary:
    """Write the downloads in `sources` to a folder in the layout that a dataset ("prostate" or "fundus") reads.

    No file is overwritten. One that exists with the same content is accepted, so that an interrupted preparation can be
    started again. UserError for other content, if a source contains no collection or overlaps with the output folder,
    or if no case could be written.
    """
    if dataset not in COLLECTIONS:
        raise UserError(f"no preparation of '{dataset}'. {suggestion(dataset, COLLECTIONS)}")
    downloads = [download for source in sources for download in _find(dataset, source, out)]
    entries = [(download.title, entry) for download in downloads for entry in download.entries]
    outcomes: list[Outcome] = []
    sources_of: dict[str, str] = {}  # the case from which a file of the output folder is written
    for title, entry in progress(entries) if progress else entries:
        case = title, entry.site, entry.name
        try:
            if entry.files is None:
                raise UserError(entry.reason)
            new_files = entry.files()
            if repeated := [name for name in new_files if name in sources_of]:
                source = sources_of[repeated[0]]
                raise UserError(f"{repeated[0]} is already written from {source}; give every collection once")
        except UserError as error:
            outcomes.append(Outcome(*case, "left out", str(error)))
            continue
        sources_of |= dict.fromkeys(new_files, f"{title}, {entry.name}")
        outcomes.append(Outcome(*case, "written" if _write(out, new_files) else "existing"))
    if all(outcome.status == "left out" for outcome in outcomes):
        found = f"no case could be used; the first, {outcomes[0].case}, was left out: {outcomes[0].reason}"
        raise Problem("no usable case", sources[0], found, "download the collection again")
    return Summary(outcomes, list(dict.fromkeys(note for download in downloads for note in download.notes)))


def format_summary(summary: Summary) -> str:
    """Return a table of the sites, the reasons for what was left out, and the notes."""
    statuses = ("written", "existing", "left out")
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    left_out: dict[tuple[str, str], list[str]] = defaultdict(list)
    for collection, site, case, status, reason in summary.outcomes:
        counts[collection, site][status] += 1
        if reason:
            left_out[site, reason].append(case)
    rows = [["collection", "site", "found", *statuses]]
    for (collection, site), n in counts.items():
        rows.append([collection, site, str(n.total()), *(str(n[status]) for status in statuses)])
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    for (site, reason), cases in left_out.items():
        more = f" and {len(cases) - MAX_NAMES} more" if len(cases) > MAX_NAMES else ""
        lines.append(f"left out: {site}: {len(cases)} x {reason} ({', '.join(cases[:MAX_NAMES])}{more})")
    return "\n".join([*lines, *(f"note: {note}" for note in summary.notes)])


def _find(dataset: str, source: Path, out: Path) -> list[Download]:
    """The collections in one source; UserError if there is none."""
    if not source.is_dir():
        found = "this is a file" if source.exists() else "this folder does not exist"
        cure = "unpack it first" if source.name.lower().endswith(_ARCHIVES) else "correct the path"
        raise Problem("no folder", source, f"{found}; expected a folder with an unpacked download", cure)
    inner, outer = source.resolve(), out.resolve()
    if outer.is_relative_to(inner) or inner.is_relative_to(outer):
        found = f"the output folder and the source {source} contain each other"
        raise Problem("output inside of the source", out, found, "choose another folder")
    downloads = [download for collection in COLLECTIONS[dataset] if (download := collection.find(source))]
    if not downloads:
        names = sorted(path.name for path in source.iterdir())
        listed = ", ".join(names[:6]) + (f", ... ({len(names)} entries)" if len(names) > 6 else "")
        parts = [name for name in names if name.endswith((*_ARCHIVES, ".aa"))]
        layouts = "; ".join(f"{collection.TITLE}: {collection.LAYOUT}" for collection in COLLECTIONS[dataset])
        found = f"found {listed or 'nothing'}; expected one of these downloads, unpacked: {layouts}"
        raise Problem("no download", source, found, f"unpack {parts[0]} first" if parts else "correct the path")
    return downloads


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
            files.write_atomically(path, content)
    except BaseException:  # also after Ctrl-C, no image stays without its mask
        for path in new:
            path.unlink(missing_ok=True)
        raise
    return bool(new)
