"""Stores each site's memory and its last reply in files, so that a stopped run can be resumed.

A resumed run is bit-identical to one that was never stopped, a finished training round of a site is never computed
twice, and work of a rejected round is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from medfed.core.errors import UserError
from medfed.core.files import read_with_checksum, sha256_digest, write_atomically
from medfed.federation.encoding import pack, unpack
from medfed.federation.message import FAILED, Message, digest
from medfed.federation.site import Site

INTERRUPTED = -1  # stands for the round of a site's memory while the site trains, as the memory may be half changed
N_KEPT_ROUNDS = 2  # a coordinator that was killed repeats one round at most
MEMORY, REPLY = "site", "reply"  # the endings of the two files of a round
ADVICE = "put back a copy, or start another run with --out"


@dataclass
class SiteStore:
    """Stores what a site has after each training round, in the files `round_NNNNN.*` of the folder `folder/SITE`.

    `.site` is the site's memory (`Site.memory`), from which the round after its last accepted round continues, and
    `.reply` the reply, which is deleted when another round begins. The memory of a site that does not train in a round
    is only in its file, unless the site needs it for validation (`Site.local_keys`).
    """

    folder: Path
    _memory_round: dict[str, int] = field(default_factory=dict)  # after which round each site's memory in RAM is

    def begin_round(self, sites: Iterable[Site], training_sites: Collection[str], number: int) -> None:
        """Free the RAM of sites that do not train in this round, and delete the replies of earlier rounds."""
        for site in sites:
            if site.name not in training_sites:
                self._release(site)
            reply = self._path(site.name, number, REPLY)
            for earlier in reply.parent.glob(f"*.{REPLY}"):
                if earlier.name < reply.name:
                    earlier.unlink()

    def train(
        self, site: Site, request: bytes, reply_to: Callable[[Message], bytes]
    ) -> tuple[bytes, Callable[[], None] | None]:
        """Return a site's reply to a training request, and the function that writes its files.

        If a reply to the same request is stored, it is returned with None. Otherwise `reply_to` trains, after the
        memory was restored to its content after the last accepted round. Nothing is written for a failed reply.
        """
        message = Message.from_bytes(request)
        number, last = message.facts["round"], message.facts.get("last", 0)
        key = digest(request, f"{site.name}: {site.reply_key()}".encode())
        save = None
        if (reply := self._stored_reply(site, number, key)) is None:
            self.restore_memory(site, last)
            self._memory_round[site.name] = INTERRUPTED
            reply = reply_to(message)
            if Message.from_bytes(reply).kind == FAILED:
                return reply, None
            save = self._saving(site, number, last, key, reply)
        self._memory_round[site.name] = number
        return reply, save

    def restore_memory(self, site: Site, last: int) -> None:
        """Restore a site's memory to its content after round `last`, its last accepted one; 0 empties it."""
        if self._memory_round.get(site.name, 0) != last:
            site.memory = self._memory_after(site, last)
            self._memory_round[site.name] = last

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
        for path in self.folder.glob("*/round_*"):
            site = path.parent.name
            if path != self._path(site, took_part.get(site, 0)):
                path.unlink()
            if not any(path.parent.iterdir()):
                path.parent.rmdir()

    def _memory_after(self, site: Site, number: int) -> dict[str, Tensor]:
        """Return a site's memory after an accepted round; empty for round 0."""
        if not number:
            return {}
        path, expected = self._path(site.name, number), _origin(site, number)
        if not path.is_file():
            raise UserError(f"{path}: is missing; it holds the state of {site.name} between rounds, so {ADVICE}")
        memory, header = _read(path)
        if (found := {name: header[name] for name in expected}) != expected:
            raise UserError(
                f"{path}: is the file of {_as_text(found)}, but expected was that of {_as_text(expected)}; {ADVICE}"
            )
        return memory

    def _release(self, site: Site) -> None:
        """Remove a site's memory from RAM if its file has it."""
        if site.memory and not site.local_keys and site.name in self._memory_round:
            site.memory = {}
            del self._memory_round[site.name]

    def _stored_reply(self, site: Site, number: int, key: str) -> bytes | None:
        """Return the stored reply to the request with this key, and restore the memory; None without such a reply."""
        path, reply_path = self._path(site.name, number), self._path(site.name, number, REPLY)
        if not path.is_file() or not reply_path.is_file():
            return None
        reply, (memory, header) = read_with_checksum(reply_path, ADVICE), _read(path)
        if header["key"] != digest(key.encode(), reply):
            return None
        site.memory, site.n_patients = memory, header["n_patients"]
        return reply

    def _saving(self, site: Site, number: int, last: int, key: str, reply: bytes) -> Callable[[], None]:
        """Return the function that writes both files of a round, and deletes those of older rounds except `last`.

        The numbers of patients are in the file of the memory, because they must not be in the reply. Its key belongs to
        the reply as well, so that a process that is killed between the two files leaves no wrong pair.
        """
        header = {"key": digest(key.encode(), reply), "n_patients": site.n_patients, **_origin(site, number)}
        memory = pack({"memory": site.memory}, header)
        path, kept = self._path(site.name, number), self._path(site.name, last)

        def save() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path.with_suffix(f".{REPLY}"), sha256_digest(reply), reply)
            write_atomically(path, sha256_digest(memory), memory)
            for old in sorted(path.parent.glob(f"*.{MEMORY}"))[:-N_KEPT_ROUNDS]:
                if old != kept:
                    old.unlink()

        return save

    def _path(self, site: str, number: int, ending: str = MEMORY) -> Path:
        return self.folder / site / f"round_{number:05d}.{ending}"


def _origin(site: Site, number: int) -> dict[str, str | int]:
    return {"site": site.name, "round": number, "seed": site.seed}


def _as_text(origin: Mapping[str, str | int]) -> str:
    """Such as "site north, round 3, seed 0"."""
    return ", ".join(f"{name} {value}" for name, value in origin.items())


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the memory in a file and its header."""
    data = read_with_checksum(path, ADVICE)
    try:
        groups, header = unpack(data, ("memory",))
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    return groups.get("memory", {}), header
