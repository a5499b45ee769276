"""The manifest of a run: a JSON file with the size and the SHA-256 of every result file, so that damage is found.

It is written before the files that it lists are changed, and keeps what it listed before, so that both contents of a
file are known if a process is killed in between. Files in `states/` and `sites/` begin with their own SHA-256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from medfed.core.errors import UserError
from medfed.core.files import checked_json, read_checked_json, write_atomically
from medfed.federation.encoding import InvalidMessage, check_format

RUN_FORMAT = 1  # increased when the layout of a run's folder changes
ADVICE = "put back a copy of the file, or repeat the run in another folder"

_appended: dict[Path, tuple[int, hashlib._Hash]] = {}  # size and checksum of the files to which this process appends


@dataclass(frozen=True)
class Entry:
    """Size and SHA-256 (64 hexadecimal characters) of a file."""

    bytes: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.bytes:,} bytes with SHA-256 {self.sha256[:12]}..."


@dataclass(frozen=True)
class Manifest:
    """Sizes and checksums of the result files of a run, by their path within the folder."""

    path: Path
    round: int = 0  # the last one whose results the files contain
    files: Mapping[str, Entry] = field(default_factory=dict)
    before: Mapping[str, Entry | None] = field(default_factory=dict)  # contents before a change that was not completed
    checkpoints: Mapping[str, str] = field(default_factory=dict)  # SHA-256 with which files of states/ and sites/ begin

    def write(self) -> None:
        """Replace the file in one step."""
        write_atomically(self.path, checked_json(self._content()))

    def changed(
        self, new: Mapping[str, Entry], tables: Collection[str], growing: Collection[str], number: int | None = None
    ) -> Manifest:
        """The manifest after a change of files (`new` content) that is announced before it is made.

        Earlier changes of other files are complete by then, so their earlier contents are no longer listed, except
        those of `tables`, which each round makes longer. Of `growing` tables only the size is compared. UserError if a
        file has neither of the two contents that the manifest lists.
        """
        before = {
            name: entry
            for name, entry in self.before.items()
            if name in tables or entry_of(self.path.parent / name) != self.files.get(name)
        }
        before |= {name: self._present(name, name in growing) for name in new}
        number = self.round if number is None else number
        return replace(self, round=number, files={**self.files, **new}, before=before)

    def check(
        self, names: Iterable[str], tables: Collection[str], growing: Collection[str], last_round: int
    ) -> list[str]:
        """One sentence for each listed file that was changed, was cut or is missing. A process that was killed while it
        appended leaves a file that begins with the earlier content. If `last_round`, the last one with a checkpoint, is
        earlier than the manifest's round, files may have their earlier content."""
        sentences = []
        if last_round > self.round:
            sentences.append(
                f"{self.path}: belongs to round {self.round}, but states/ holds round {last_round}; put "
                "back the manifest that belongs to these checkpoints"
            )
        for name in names:
            if not (self.path.parent / name).resolve().is_relative_to(self.path.parent.resolve()):
                sentences.append(f"{self.path.parent / name}: is a link out of the run's folder; {ADVICE}")
                continue
            expected, earlier = self.files[name], self.before.get(name)
            present = entry_of(self.path.parent / name)
            is_earlier = name in self.before and present == earlier
            if name in tables and last_round >= self.round:  # complete, unless a file was being created or shortened
                is_earlier = is_earlier and (earlier is None or earlier.bytes > expected.bytes)
            is_partial = name in growing and last_round < self.round and self._n_complete(name) is not None
            if present != expected and not is_earlier and not is_partial:
                sentences.append(self._sentence(name, present))
        return sentences

    def check_checkpoints(self, newest: str) -> list[str]:
        """One sentence for each file in `states/` and `sites/` of another run; missing files are allowed. `newest`,
        from which a resumed run continues, must be listed."""
        sentences = []
        for name in sorted({*self.checkpoints, newest}):
            path, expected = self.path.parent / name, self.checkpoints.get(name)
            if path.is_file() and (present := first_sha256(path)) != expected:
                listed = f"{expected[:12]}..." if expected else "no such file"
                advice = "" if name.startswith("sites/") else ", or delete it to continue from the previous round"
                sentences.append(
                    f"{path}: begins with SHA-256 {present[:12]}..., but {self.path.name} lists {listed}: "
                    f"it is damaged or of another run; put back the file of this run{advice}"
                )
        return sentences

    def cut_partial(self, name: str) -> None:
        """Remove what a killed process appended to a file, if it did not append everything."""
        path = self.path.parent / name
        if (
            path.is_file()
            and entry_of(path) not in (self.files.get(name), self.before.get(name))
            and (n_complete := self._n_complete(name)) is not None
        ):
            with open(path, "r+b") as file:
                file.truncate(n_complete)

    def _n_complete(self, name: str) -> int | None:
        """Bytes of a file before what a killed process appended only in part; None if the file is in another state."""
        path, earlier = self.path.parent / name, self.before.get(name, Entry(-1, ""))
        size = path.stat().st_size if path.is_file() else 0
        if earlier is None:
            return 0 if size < self.files[name].bytes else None
        is_between = earlier.bytes <= size < self.files[name].bytes
        return earlier.bytes if is_between and entry_of(path, earlier.bytes) == earlier else None

    def _present(self, name: str, by_size: bool) -> Entry | None:
        """Which of the listed contents a file has now; None if there is no file."""
        path = self.path.parent / name
        if by_size and name in self.files and path.is_file() and path.stat().st_size == self.files[name].bytes:
            return self.files[name]
        present = entry_of(path)
        if present is not None and name in self.files and present not in (self.files[name], self.before.get(name)):
            raise UserError(self._sentence(name, present))
        return present

    def _sentence(self, name: str, present: Entry | None) -> str:
        """The problem that a file is missing or differs from its entry, as a sentence."""
        state = "is missing" if present is None else f"has {present}"
        return f"{self.path.parent / name}: {state}, but {self.path.name} lists {self.files[name]}; {ADVICE}"

    def _content(self) -> dict[str, Any]:
        entries = {"files": self.files, "before": self.before}
        listed = {
            key: {name: entry and asdict(entry) for name, entry in by_name.items()} for key, by_name in entries.items()
        }
        return {"format": RUN_FORMAT, "round": self.round, "checkpoints": dict(self.checkpoints), **listed}


def read_manifest(path: Path) -> Manifest | None:
    """Read a manifest; None if the file does not exist, UserError if it is damaged or of another format."""
    if not path.is_file():
        return None
    try:
        content = read_checked_json(path.read_bytes())
        check_format("run folder", content.get("format"), RUN_FORMAT)
        files = {name: Entry(**entry) for name, entry in content["files"].items()}
        before = {name: entry and Entry(**entry) for name, entry in content["before"].items()}
        checkpoints = dict(content["checkpoints"])
        _check_entries(content["round"], [*files.items(), *before.items()], checkpoints)
        return Manifest(path, content["round"], files, before, checkpoints)
    except InvalidMessage as error:
        raise UserError(f"{path}: {error}") from error
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: the file is damaged ({error}); {ADVICE}") from error


def _check_entries(
    number: object, entries: Iterable[tuple[str, Entry | None]], checkpoints: Mapping[str, object]
) -> None:
    """ValueError if a manifest lists something else than files in its folder with their sizes and checksums."""
    if type(number) is not int:
        raise ValueError(f"its round is {ascii(number)[:80]}")
    entries = list(entries)
    for name in [*(name for name, _ in entries), *checkpoints]:
        plain = PurePosixPath(name)
        if str(plain) != name or plain.is_absolute() or ".." in plain.parts or not name.isprintable():
            raise ValueError(f"it lists {ascii(name)[:80]}, which is no file inside the run's folder")
    for name, entry in entries:
        if entry is not None and not (type(entry.bytes) is int and isinstance(entry.sha256, str)):
            raise ValueError(f"it lists no size and checksum of {name}")
    if not all(isinstance(sha256, str) for sha256 in checkpoints.values()):
        raise ValueError("it lists no checksum of a checkpoint")


def first_sha256(path: Path) -> str:
    """The SHA-256 with which a file in `states/` or `sites/` begins; shorter if the file has less than 32 bytes."""
    with open(path, "rb") as file:
        return file.read(hashlib.sha256().digest_size).hex()


def entry_of(path: Path, n_bytes: int | None = None) -> Entry | None:
    """Entry of a file, or of its first `n_bytes`; None if the file does not exist."""
    if not path.is_file():
        return None
    checksum, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while part := file.read(2**20 if n_bytes is None else min(2**20, n_bytes - size)):
            checksum.update(part)
            size += len(part)
    return Entry(size, checksum.hexdigest())


def entry_of_appended(path: Path, data: bytes) -> Entry:
    """The entry that a file, which may be missing, will have after data were appended. The present checksum is
    continued, because the file may be long."""
    size, checksum = _appended.get(path, (0, hashlib.sha256()))
    if size != (path.stat().st_size if path.is_file() else 0):
        content = path.read_bytes() if path.is_file() else b""
        size, checksum = len(content), hashlib.sha256(content)
    checksum = checksum.copy()
    checksum.update(data)
    _appended[path] = size + len(data), checksum
    return Entry(size + len(data), checksum.hexdigest())


def entry_of_bytes(data: bytes) -> Entry:
    return Entry(len(data), hashlib.sha256(data).hexdigest())
