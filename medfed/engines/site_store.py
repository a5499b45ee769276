"""Stores each site's memory and its last replies in files, so that a stopped run can be resumed.

`InProcess` writes one file for each site and training round. With these files a resumed run is bit-identical to one
that was never stopped, a finished training round of a site is never computed twice, and work of a rejected round is
undone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from medfed.core.errors import UserError
from medfed.core.files import read_with_checksum, sha256_digest, stage_file, write_atomically
from medfed.federation.message import FAILED, Message, digest, pack, unpack
from medfed.federation.site import Site

INTERRUPTED = -1  # stands for the round of a site's memory while the site trains, as the memory may be half changed
N_KEPT_ROUNDS = 2  # a coordinator that was killed repeats one round at most
WITHOUT_MEMORY = ".without_memory.json"  # cannot be the folder of a site, as no name of a site begins with a dot
ADVICE = "put back a copy, or start another run with --out"


@dataclass
class SiteStore:
    """Reads and writes the files `folder/SITE/round_NNNNN.site`.

    Each file holds the site's reply of one training round and the site's memory after that round. The memory of a site
    that does not train in a round is released, and read from its file when it is needed again; except for a site with
    local entries, which needs them for validation. A site without memory (for example if `training.optimizer_state` is
    "reset") has a file only until its round is accepted, because until then the coordinator may repeat the request.

    Args:
        folder: the folder that holds one folder for each site.
    """

    folder: Path
    _memory_round: dict[str, int] = field(default_factory=dict)  # after which round each site's memory is
    _released: set[str] = field(default_factory=set)  # sites whose memory is only in their file

    def begin_round(self, sites: Iterable[Site], training_sites: Collection[str], number: int) -> None:
        """Release the memory of sites that do not train, and delete files that are no longer needed.

        Args:
            sites: all sites of this process.
            training_sites: the names of the sites that train in this round.
            number: the round that begins. Files of earlier rounds are deleted for sites without memory.
        """
        for site in sites:
            if site.name not in training_sites:
                self._release(site)
        for name, rounds in self._without_memory().items():
            for path in (self._path(name, earlier) for earlier in rounds if earlier < number):
                path.unlink(missing_ok=True)
            if (folder := self.folder / name).is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def train(
        self, site: Site, request: bytes, reply_to: Callable[[Message], bytes]
    ) -> tuple[bytes, Callable[[], None] | None]:
        """Return a site's reply to a training request, from its file if it has replied to the same request before.

        Args:
            site: the site. Its memory is set to that of its last accepted round before, and to that of this round
                after the training.
            request: the bytes of the request.
            reply_to: computes the bytes of the reply; called only if there is no stored reply to this request.

        Returns:
            The bytes of the reply, and a function that moves the site's new file to its final place; None instead of
            the function if the reply was stored before, or is of kind "failed".

        Raises:
            UserError: if the file of the last accepted round is missing or damaged.
        """
        message = Message.from_bytes(request)
        number, last = message.facts["round"], message.facts.get("last", 0)
        key, path = digest(request, site.reply_key().encode()), self._path(site.name, number)
        commit = None
        if path.is_file() and (stored := _read(path)).key == key:
            site.memory, reply = stored.memory, stored.reply
        else:
            self.restore_memory(site, last)
            self._memory_round[site.name] = INTERRUPTED
            reply = reply_to(message)
            if Message.from_bytes(reply).kind == FAILED:
                return reply, None
            commit = _stage(path, key, reply, site.memory, self._path(site.name, last))
        self._released.discard(site.name)
        self._memory_round[site.name] = number
        return reply, commit

    def end_round(self, trained: Iterable[Site], number: int) -> None:
        """Record which of the sites that trained in this round have no memory after it.

        For those sites, a missing file is not an error when the run is resumed.

        Args:
            trained: the sites that trained in this round, sorted by name.
            number: the round.
        """
        old = self._without_memory()
        new = dict(old)
        for site in trained:
            rounds = [earlier for earlier in old.get(site.name, []) if earlier < number]
            rounds = rounds if site.memory else [*rounds, number][-N_KEPT_ROUNDS:]
            if rounds or site.name in old:
                new[site.name] = rounds
        if new != old:
            write_atomically(self.folder / WITHOUT_MEMORY, json.dumps(new, sort_keys=True))

    def restore_memory(self, site: Site, last: int) -> None:
        """Give a site the memory of its last accepted round, if it currently has the memory of another round.

        Args:
            site: the site.
            last: the number of its last accepted round; 0 if it has none, which empties the memory.

        Raises:
            UserError: if the file of that round is missing or damaged.
        """
        if self._memory_round.get(site.name, 0) != last or site.name in self._released:
            site.memory = self._memory_after(site.name, last)
            self._memory_round[site.name] = last
            self._released.discard(site.name)

    def restore(self, sites: Iterable[Site], took_part: Mapping[str, int]) -> None:
        """Give each site the memory that it had after its last accepted round, before a run is resumed.

        Args:
            sites: all sites of this process.
            took_part: the number of that round, by the name of the site (`State.took_part`).

        Raises:
            UserError: if the file of a site is missing or damaged; without it, the optimiser would start from zero.
        """
        for site in sites:
            if number := took_part.get(site.name):
                site.memory = self._memory_after(site.name, number)
                self._memory_round[site.name] = number
                if number < max(took_part.values()):
                    self._release(site)

    def _memory_after(self, name: str, number: int) -> dict[str, Tensor]:
        """Return a site's memory after an accepted round; an empty dict for round 0."""
        path = self._path(name, number)
        if path.is_file():
            return _read(path).memory
        if number and name not in self._without_memory():
            raise UserError(f"{path}: is missing; it holds the state of {name} between rounds, so {ADVICE}")
        return {}

    def _release(self, site: Site) -> None:
        if site.memory and not site.local_keys and site.name in self._memory_round:
            site.memory = {}
            self._released.add(site.name)

    def _without_memory(self) -> dict[str, list[int]]:
        """Return the last rounds after which each site had no memory, by the name of the site."""
        path = self.folder / WITHOUT_MEMORY
        return json.loads(path.read_text()) if path.is_file() else {}

    def _path(self, site: str, number: int) -> Path:
        return self.folder / site / f"round_{number:05d}.site"


@dataclass(frozen=True)
class _StoredRound:
    """The content of a file: the digest of the request and of `Site.reply_key`, the reply, and the memory after it."""

    key: str
    reply: bytes
    memory: dict[str, Tensor]


def _stage(path: Path, key: str, reply: bytes, memory: Mapping[str, Tensor], last: Path) -> Callable[[], None]:
    """Write a temporary file next to `path`; return the function that moves it to `path` and deletes old files.

    The file holds the length of the reply (8 bytes, little endian), the reply, and the memory.

    Args:
        path: the file of this round.
        key: the digest of the request and of `Site.reply_key`.
        reply: the bytes of the reply.
        memory: the site's memory after the round.
        last: the file of the last accepted round, which is not deleted until another round is accepted.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = len(reply).to_bytes(8, "little"), reply, pack({"memory": memory}, {"asked": key})
    commit = stage_file(path, sha256_digest(*parts), *parts)

    def finish() -> None:
        commit()
        for old in sorted(path.parent.glob("round_*"))[:-N_KEPT_ROUNDS]:
            if old != last:
                old.unlink()

    return finish


def _read(path: Path) -> _StoredRound:
    data = read_with_checksum(path, ADVICE)
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        groups, header = unpack(data[end:])
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    return _StoredRound(header["asked"], data[8:end], groups.get("memory", {}))
