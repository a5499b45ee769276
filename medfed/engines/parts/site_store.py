"""Stores each site's memory and its last replies in files, so that a stopped run can be resumed.

With one file for each site and training round, a resumed run is bit-identical to one that was never stopped, a finished
training round of a site is never computed twice, and work of a rejected round is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from medfed.core.errors import UserError
from medfed.core.files import (
    checked_json,
    exclusive_lock,
    read_checked_json,
    read_with_checksum,
    sha256_digest,
    stage_file,
    write_atomically,
)
from medfed.federation.encoding import entry, pack, unpack
from medfed.federation.message import FAILED, Message, digest
from medfed.federation.site import Site

INTERRUPTED = -1  # stands for the round of a site's memory while the site trains, as the memory may be half changed
N_KEPT_ROUNDS = 2  # a coordinator that was killed repeats one round at most
WITHOUT_MEMORY = ".without_memory.json"  # cannot be the folder of a site, as no name of a site begins with a dot
LOCK_TIMEOUT_S = 60
ORIGIN = ("site", "round", "seed")  # what a file says about its origin
ADVICE = "put back a copy, or start another run with --out"


@dataclass
class SiteStore:
    """Stores each site's reply and memory (`Site.memory`) after each training round, in `folder/SITE/round_NNNNN.site`.

    The memory of a site that does not train in a round stays in its file only, unless entries of the network never
    leave the site (`Site.local_keys`), which it needs for validation. A site without memory has a file only until its
    round is accepted, because until then the coordinator may repeat the request. A missing or damaged file, or one of
    another site, round or seed, raises UserError. `is_shared`: other processes, with other sites, write to the folder
    at the same time.
    """

    folder: Path
    is_shared: bool = False
    _memory_round: dict[str, int] = field(default_factory=dict)  # after which round each site's memory is
    _released: set[str] = field(default_factory=set)  # sites whose memory is only in their file

    def begin_round(self, sites: Iterable[Site], training_sites: Collection[str], number: int) -> None:
        """Free the RAM of sites that do not train in this round; delete files of rounds that left no memory."""
        without_memory = self._without_memory()
        for site in sites:
            if site.name not in training_sites:
                self._release(site)
            for earlier in without_memory.get(site.name, []):
                if earlier < number:
                    self._path(site.name, earlier).unlink(missing_ok=True)
            folder = self.folder / site.name
            if site.name in without_memory and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def train(
        self, site: Site, request: bytes, reply_to: Callable[[Message], bytes]
    ) -> tuple[bytes, Callable[[], None] | None]:
        """Return a site's reply to a training request; train only if no reply to the same request is stored.

        `reply_to` trains, after the memory was restored to its content after the last accepted round. The second result
        moves the site's new file to its final place; None if there is no new file (stored or failed reply).
        """
        message = Message.from_bytes(request)
        number, last = message.facts["round"], message.facts.get("last", 0)
        key, path = digest(request, f"{site.name}: {site.reply_key()}".encode()), self._path(site.name, number)
        commit = None
        if path.is_file() and (stored := _read(path)).key == key:
            site.memory, site.n_patients, reply = stored.memory, stored.n_patients, stored.reply
        else:
            self.restore_memory(site, last)
            self._memory_round[site.name] = INTERRUPTED
            reply = reply_to(message)
            if Message.from_bytes(reply).kind == FAILED:
                return reply, None
            commit = _stage(path, key, reply, site, number, self._path(site.name, last))
        self._released.discard(site.name)
        self._memory_round[site.name] = number
        return reply, commit

    def end_round(self, trained: Iterable[Site], number: int) -> None:
        """Record which of the trained sites have an empty memory, so that a missing file of theirs is no error."""
        trained = list(trained)
        if not self._changed(trained, number):
            return
        self.folder.mkdir(parents=True, exist_ok=True)  # it is missing if no site could train
        with self._locked():
            record = {**self._without_memory(), **self._changed(trained, number)}
            write_atomically(self.folder / WITHOUT_MEMORY, checked_json({"rounds": record}))

    def restore_memory(self, site: Site, last: int) -> None:
        """Restore a site's memory to its content after round `last`, its last accepted one; 0 empties it."""
        if self._memory_round.get(site.name, 0) != last or site.name in self._released:
            site.memory = self._memory_after(site, last)
            self._memory_round[site.name] = last
            self._released.discard(site.name)

    def restore(self, sites: Iterable[Site], took_part: Mapping[str, int]) -> None:
        """Restore the memory of each site to its content after its last accepted round (`State.took_part`).

        The memory of a site stays in its file if another site has a later last accepted round.
        """
        for site in sites:
            if number := took_part.get(site.name):
                site.memory = self._memory_after(site, number)
                self._memory_round[site.name] = number
                if number < max(took_part.values()):
                    self._release(site)

    def tidy(self, took_part: Mapping[str, int]) -> None:
        """Delete the files that no later round needs: all but the memory after each site's last accepted round."""
        without_memory = self._without_memory()
        for path in self.folder.glob("*/round_*.site"):
            site = path.parent.name
            if site in without_memory or path != self._path(site, took_part.get(site, 0)):
                path.unlink()
            if not any(path.parent.iterdir()):
                path.parent.rmdir()

    def _memory_after(self, site: Site, number: int) -> dict[str, Tensor]:
        """Return a site's memory after an accepted round; empty for round 0."""
        path = self._path(site.name, number)
        if path.is_file():
            stored, expected = _read(path), _origin(site, number)
            if stored.origin != expected:
                raise UserError(
                    f"{path}: is the file of {_as_text(stored.origin)}, but expected was that of "
                    f"{_as_text(expected)}; {ADVICE}"
                )
            return stored.memory
        if number and site.name not in self._without_memory():
            raise UserError(f"{path}: is missing; it holds the state of {site.name} between rounds, so {ADVICE}")
        return {}

    def _release(self, site: Site) -> None:
        """Remove a site's memory from main memory if its file has it."""
        if site.memory and not site.local_keys and site.name in self._memory_round:
            site.memory = {}
            self._released.add(site.name)

    def _changed(self, trained: Iterable[Site], number: int) -> dict[str, list[int]]:
        """Return the entries of the record of sites without memory that change with this round."""
        old, changed = self._without_memory(), {}
        for site in trained:
            rounds = [earlier for earlier in old.get(site.name, []) if earlier < number]
            rounds = rounds if site.memory else [*rounds, number][-N_KEPT_ROUNDS:]
            if rounds != old.get(site.name, []):
                changed[site.name] = rounds
        return changed

    def _locked(self) -> AbstractContextManager[object]:
        """Return a context manager during which no other process changes the record of sites without memory."""
        if not self.is_shared:
            return nullcontext()
        path = self.folder / f"{WITHOUT_MEMORY}.lock"
        return exclusive_lock(
            path,
            lambda holder: UserError(
                f"{path}: {holder} still uses this file; wait until this process has ended, or "
                "end it, and repeat the command"
            ),
            LOCK_TIMEOUT_S,
        )

    def _without_memory(self) -> dict[str, list[int]]:
        """Return the last rounds after which each site had no memory, by the name of the site."""
        path = self.folder / WITHOUT_MEMORY
        if not path.is_file():
            return {}
        try:
            return read_checked_json(path.read_bytes())["rounds"]
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: the file is damaged ({error}); {ADVICE}") from error

    def _path(self, site: str, number: int) -> Path:
        """The file with a site's memory after the round `number`."""
        return self.folder / site / f"round_{number:05d}.site"


@dataclass(frozen=True)
class _StoredRound:
    """The content of a file.

    Attributes:
        key: the digest of the request, the site's name and `Site.reply_key`.
        reply: the bytes of the reply.
        memory: the site's memory after the reply.
        n_patients: the numbers of patients behind the tensors of the reply (`Site.n_patients`).
        origin: the values of `ORIGIN`.
    """

    key: str
    reply: bytes
    memory: dict[str, Tensor]
    n_patients: dict[str, int]
    origin: dict[str, str | int]


def _stage(path: Path, key: str, reply: bytes, site: Site, number: int, last: Path) -> Callable[[], None]:
    """Write a temporary file next to `path`; return the function that moves it to `path` and deletes old files.

    The file holds the length of the reply (8 bytes, little endian), the reply, and the memory. The header of the memory
    holds site, round and seed, so that a file of another site or run is found, and the numbers of patients, because
    they must not be in the reply. `last`, the file of the last accepted round, is not deleted.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    memory = pack({"memory": site.memory}, {"asked": key, "n_patients": site.n_patients, **_origin(site, number)})
    parts = len(reply).to_bytes(8, "little"), reply, memory
    commit = stage_file(path, sha256_digest(*parts), *parts)

    def finish() -> None:
        """Give the written file its name, and delete older rounds."""
        commit()
        for old in sorted(path.parent.glob("round_*"))[:-N_KEPT_ROUNDS]:
            if old != last:
                old.unlink()

    return finish


def _origin(site: Site, number: int) -> dict[str, str | int]:
    """Return what a file says about its origin: site, round and seed."""
    return dict(zip(ORIGIN, (site.name, number, site.seed), strict=True))


def _as_text(origin: Mapping[str, str | int]) -> str:
    """Such as "round 3, seed 0"."""
    return ", ".join(f"{name} {value}" for name, value in origin.items())


def _read(path: Path) -> _StoredRound:
    """Read the file of one round of a site; UserError if it is damaged."""
    data = read_with_checksum(path, ADVICE)
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        groups, header = unpack(data[end:], ("memory",))
        key, n_patients = entry(header, "asked"), entry(header, "n_patients")
        origin = {name: entry(header, name) for name in ORIGIN}
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    return _StoredRound(key, data[8:end], groups.get("memory", {}), n_patients, origin)
