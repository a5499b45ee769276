"""The checkpoints of simulated sites: what each keeps between rounds, and its last replies, in files."""

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

INTERRUPTED = -1  # in place of the round that a site's memory belongs to, while that round is not finished
N_KEPT_ROUNDS = 2  # a coordinator that was killed goes back one round at most
WITHOUT_MEMORY = ".without_memory.json"  # no site's name begins with a dot
ADVICE = "put back a copy, or start another run with --out"


@dataclass
class SiteStore:
    """Files `folder/SITE/round_NNNNN.site`, each with the site's reply of a training round and its memory after it.

    A run that was killed gets the same bits from them, and repeats no site's finished round. The memory of a site that
    does not train in a round rests in its file and not in this process, unless the site keeps entries of the network
    for itself: it validates with those. A site that keeps nothing between rounds (as where `training.optimizer_state`
    is "reset") has a file until the end of the round, which is as long as the coordinator may ask for its reply again.

    Args:
        folder: where the sites' folders are.
    """

    folder: Path
    _trained: dict[str, int] = field(default_factory=dict)  # the round that each site's memory belongs to
    _resting: set[str] = field(default_factory=set)  # sites whose memory is in their file alone

    def begin_round(self, sites: Iterable[Site], trains: Collection[str], number: int) -> None:
        """Release the memory of the sites that do not train, and remove replies of rounds that are committed."""
        for site in sites:
            if site.name not in trains:
                self._release(site)
        for name, rounds in self._without_memory().items():
            for path in (self._path(name, earlier) for earlier in rounds if earlier < number):
                path.unlink(missing_ok=True)
            if (folder := self.folder / name).is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def train(
        self, site: Site, request: bytes, answer: Callable[[Message], bytes]
    ) -> tuple[bytes, Callable[[], None] | None]:
        """The site's reply to a training request: from its file, if it answered the very same request before.

        Returns:
            The reply, and what puts the site's new file in its place; None where no file is to be written.
        """
        message = Message.from_bytes(request)
        number, last = message.facts["round"], message.facts.get("last", 0)
        key, path = digest(request, site.reply_key().encode()), self._path(site.name, number)
        commit = None
        if path.is_file() and (kept := _read(path)).key == key:
            site.memory, reply = kept.memory, kept.reply
        else:
            self.go_back(site, last)
            self._trained[site.name] = INTERRUPTED
            reply = answer(message)
            if Message.from_bytes(reply).kind == FAILED:
                return reply, None
            commit = _stage(path, key, reply, site.memory, self._path(site.name, last))
        self._resting.discard(site.name)
        self._trained[site.name] = number
        return reply, commit

    def end_round(self, trained: Iterable[Site], number: int) -> None:
        """Write down which of the sites that trained in this round have no memory after it."""
        old = self._without_memory()
        new = dict(old)
        for site in trained:
            rounds = [earlier for earlier in old.get(site.name, []) if earlier < number]
            rounds = rounds if site.memory else [*rounds, number][-N_KEPT_ROUNDS:]
            if rounds or site.name in old:
                new[site.name] = rounds
        if new != old:
            write_atomically(self.folder / WITHOUT_MEMORY, json.dumps(new, sort_keys=True))

    def go_back(self, site: Site, last: int) -> None:
        """Give a site the memory of its last accepted round, where it has that of another round."""
        if self._trained.get(site.name, 0) != last or site.name in self._resting:
            site.memory = self._memory_after(site.name, last)
            self._trained[site.name] = last
            self._resting.discard(site.name)

    def restore(self, sites: Iterable[Site], took_part: Mapping[str, int]) -> None:
        """Give every site the memory that it had after the round that it last took part in (`State.took_part`).

        Raises:
            UserError: if a site's file is gone; its optimiser would silently start again.
        """
        for site in sites:
            if number := took_part.get(site.name):
                site.memory = self._memory_after(site.name, number)
                self._trained[site.name] = number
                if number < max(took_part.values()):
                    self._release(site)

    def _memory_after(self, name: str, number: int) -> dict[str, Tensor]:
        """What a site kept after an accepted round; nothing before the first."""
        path = self._path(name, number)
        if path.is_file():
            return _read(path).memory
        if number and name not in self._without_memory():
            raise UserError(f"{path}: is missing, and with it what {name} keeps between rounds; {ADVICE}")
        return {}

    def _release(self, site: Site) -> None:
        if site.memory and not site.local_keys and site.name in self._trained:
            site.memory = {}
            self._resting.add(site.name)

    def _without_memory(self) -> dict[str, list[int]]:
        """The last rounds that each site ended without memory: one file for all, if there is such a site."""
        path = self.folder / WITHOUT_MEMORY
        return json.loads(path.read_text()) if path.is_file() else {}

    def _path(self, site: str, number: int) -> Path:
        return self.folder / site / f"round_{number:05d}.site"


@dataclass(frozen=True)
class _Kept:
    """A site's file: the digest of the request and of the site's settings, the reply, and the memory after it."""

    key: str
    reply: bytes
    memory: dict[str, Tensor]


def _stage(path: Path, key: str, reply: bytes, memory: Mapping[str, Tensor], last: Path) -> Callable[[], None]:
    """Write the number of the reply's bytes, the reply and the memory beside `path`; the result moves them there.

    Args:
        last: the file of the last accepted round, which is kept until another round is accepted.
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


def _read(path: Path) -> _Kept:
    data = read_with_checksum(path, ADVICE)
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        groups, header = unpack(data[end:])
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    return _Kept(header["asked"], data[8:end], groups.get("memory", {}))
