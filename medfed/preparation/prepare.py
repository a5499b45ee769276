"""Find out which collections lie in folders, write their cases, and count what was written and left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from medfed.core import files
from medfed.core.errors import UserError
from medfed.core.registry import suggestion
from medfed.datasets.base import Progress
from medfed.preparation import drishti_gs, i2cvb, nci_isbi, promise12, refuge, rim_one
from medfed.preparation.entry import Download, Entry


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


@dataclass
class SiteCount:
    """How many cases of a download belong to a site, and what became of them."""

    found: int = 0
    written: int = 0
    existing: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)  # (name of the case, reason)


@dataclass
class Summary:
    """Result of a preparation: the counts by (title of the download, site), and the notes of the downloads."""

    counts: dict[tuple[str, str], SiteCount]
    notes: list[str]

    @property
    def n_usable(self) -> int:
        """Number of cases that are now in the output folder."""
        return sum(count.written + count.existing for count in self.counts.values())


def prepare(dataset: str, sources: Sequence[Path], out: Path, progress: Progress | None = None) -> Summary:
    """Write the downloads in `sources` to a folder in the layout that a dataset ("prostate" or "fundus") reads.

    No file is overwritten. One that exists with the same content is accepted, so that an interrupted preparation can be
    started again. UserError for other content, if a source contains no collection or overlaps with the output folder,
    or if no case could be written.
    """
    if dataset not in COLLECTIONS:
        raise UserError(f"no preparation of '{dataset}'. {suggestion(dataset, COLLECTIONS)}")
    downloads = [download for source in sources for download in _find(dataset, source, out)]
    summary = Summary({}, list(dict.fromkeys(note for download in downloads for note in download.notes)))
    entries = [(download.title, entry) for download in downloads for entry in download.entries]
    sources_of: dict[str, str] = {}
    for title, entry in progress(entries) if progress else entries:
        count = summary.counts.setdefault((title, entry.site), SiteCount())
        count.found += 1
        try:
            new_files = _files(entry)
            _check_source(entry, title, new_files, sources_of)
        except UserError as error:
            count.left_out.append((entry.name, str(error)))
            continue
        if _write(out, new_files):
            count.written += 1
        else:
            count.existing += 1
    if not summary.n_usable:
        name, reason = next(iter(summary.counts.values())).left_out[0]
        raise UserError(f"{sources[0]}: no case could be used; the first, {name}, was left out: {reason}")
    return summary


def format_summary(summary: Summary) -> str:
    """A table of the sites, the reasons for what was left out, and the notes."""
    header = ("collection", "site", "found", "written", "existing", "left out")
    rows = [
        (title, site, *map(str, (count.found, count.written, count.existing, len(count.left_out))))
        for (title, site), count in summary.counts.items()
    ]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in (header, *rows)]
    for (_, site), count in summary.counts.items():
        for reason, n in Counter(reason for _, reason in count.left_out).items():
            names = [name for name, other in count.left_out if other == reason]
            more = f" and {n - MAX_NAMES} more" if n > MAX_NAMES else ""
            lines.append(f"left out: {site}: {n} x {reason} ({', '.join(names[:MAX_NAMES])}{more})")
    return "\n".join([*lines, *(f"note: {note}" for note in summary.notes)])


def _find(dataset: str, source: Path, out: Path) -> list[Download]:
    """The collections in one source; UserError if there is none."""
    layouts = "; ".join(f"{collection.TITLE}: {collection.LAYOUT}" for collection in COLLECTIONS[dataset])
    if source.is_file():
        unpack = "unpack it first" if source.name.lower().endswith(_ARCHIVES) else "name the folder of the download"
        raise UserError(f"{source}: this is a file; expected a folder; {unpack}")
    if not source.is_dir():
        raise UserError(f"{source}: this folder does not exist; expected a folder with an unpacked download")
    inner, outer = source.resolve(), out.resolve()
    if outer.is_relative_to(inner) or inner.is_relative_to(outer):
        raise UserError(f"{out}: the output folder and the source {source} contain each other; choose another folder")
    found = [download for collection in COLLECTIONS[dataset] if (download := collection.find(source))]
    if not found:
        names = sorted(path.name for path in source.iterdir())
        listed = ", ".join(names[:6]) + (f", ... ({len(names)} entries)" if len(names) > 6 else "")
        parts = [name for name in names if name.endswith((*_ARCHIVES, ".aa"))]
        advice = f"; unpack {parts[0]} first" if parts else ""
        raise UserError(
            f"{source}: found {listed or 'nothing'}; expected one of these downloads, unpacked: {layouts}{advice}"
        )
    return found


def _files(entry: Entry) -> Mapping[str, bytes]:
    """The content of the case's files, by path; UserError if the case is left out."""
    if entry.files is None:
        raise UserError(entry.reason)
    return entry.files()


def _check_source(entry: Entry, title: str, new_files: Mapping[str, bytes], sources_of: dict[str, str]) -> None:
    """UserError if a case of another download or folder has the same files."""
    own = f"{title}, {entry.name}"
    for name in new_files:
        if name in sources_of:
            raise UserError(f"{name} is already written from {sources_of[name]}; give every collection once")
    sources_of.update(dict.fromkeys(new_files, own))


def _write(out: Path, new_files: Mapping[str, bytes]) -> bool:
    """Write the files of a case, all of them or none; return whether one of them is new."""
    existing = {name for name in new_files if (out / name).exists()}
    for name in sorted(existing):
        if not _is_same(out / name, new_files[name]):
            raise UserError(
                f"{out / name}: the file exists with another content; nothing is overwritten; choose another output "
                "folder, or remove this one"
            )
    new = {name: content for name, content in new_files.items() if name not in existing}
    try:
        for name, content in new.items():
            _create(out / name, content)
    except BaseException:  # also after Ctrl-C, no image stays without its mask
        for name in new:
            (out / name).unlink(missing_ok=True)
        raise
    return bool(new)


def _is_same(path: Path, content: bytes) -> bool:
    return path.stat().st_size == len(content) and path.read_bytes() == content


def _create(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(path, content)
