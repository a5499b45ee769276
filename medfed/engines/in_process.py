"""All sites in one process, one after another; messages still cross as bytes, so nothing else can leak."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from medfed.errors import UserError
from medfed.federation.message import Message, digest, pack, unpack
from medfed.federation.site import Site
from medfed.files import read_sealed, seal, stage

KEPT_ROUNDS = 2  # a coordinator that was killed goes back one round at most
ADVICE = "put back a copy, or start another run with --out"


@dataclass
class InProcess:
    """The engine of simulations and of the first run on a laptop.

    Args:
        members: the sites.
        folder: where each site keeps its memory and its last answers, so that a killed run goes on to the same bits
            and repeats no site's finished round; None keeps nothing.
        on_answer: told the kind, the site, and how many of how many sites have answered.
    """

    members: list[Site]
    folder: Path | None = None
    on_answer: Callable[[str, str, int, int], None] | None = None

    def sites(self) -> list[str]:
        return sorted(site.name for site in self.members)

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Each site in turn, in the order of their names."""
        by_name = {site.name: site for site in self.members}
        answers = {}
        letters: dict[int, bytes] = {}  # what goes to several sites is written once
        for message in messages.values():
            if id(message) not in letters:
                letters[id(message)] = message.to_bytes()
        files: list[Future[None]] = []
        with ThreadPoolExecutor(1) as disk:  # the next site trains while the disk takes this one's file
            for index, name in enumerate(sorted(messages), start=1):
                answer, commit = self._deliver(by_name[name], letters[id(messages[name])])
                answers[name] = Message.from_bytes(answer)
                files += [disk.submit(commit)] if commit else []
                if self.on_answer:
                    self.on_answer(kind, name, index, len(messages))
        for file in files:
            file.result()  # a full disk is told here
        return answers

    def _deliver(self, site: Site, letter: bytes) -> tuple[bytes, Callable[[], None] | None]:
        """The answer, and what puts the site's new file in its place, if there is one."""
        message = Message.from_bytes(letter)
        if self.folder is None or message.kind != "train":
            return site.answer(message).to_bytes(), None
        asked, path = digest(letter, site.terms().encode()), self._path(site.name, message.facts["round"])
        if path.is_file() and (kept := _read(path)).asked == asked:  # it has answered this very letter before
            site.memory = kept.memory
            return kept.answer, None
        answer = site.answer(message).to_bytes()
        return answer, _stage(path, asked, answer, site.memory)

    def restore(self, took_part: Mapping[str, int]) -> None:
        """Give every site the memory that it had after the round that it last took part in (`State.took_part`).

        Raises:
            UserError: if a site's file is gone; its optimiser would silently start again.
        """
        for site in self.members:
            if number := took_part.get(site.name):
                path = self._path(site.name, number)
                if not path.is_file():
                    raise UserError(f"{path}: is missing, and with it what {site.name} keeps between rounds; {ADVICE}")
                site.memory = _read(path).memory

    def _path(self, site: str, number: int) -> Path:
        return self.folder / site / f"round_{number:05d}.site"


@dataclass(frozen=True)
class _Kept:
    """A site's file: the digest of what it was asked, its answer, and its memory after that."""

    asked: str
    answer: bytes
    memory: dict[str, Tensor]


def _stage(path: Path, asked: str, answer: bytes, memory: Mapping[str, Tensor]) -> Callable[[], None]:
    """The answer goes in as it is: its bytes, after their number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = len(answer).to_bytes(8, "little"), answer, pack({"memory": memory}, {"asked": asked})
    commit = stage(path, seal(*parts), *parts)

    def finish() -> None:
        commit()
        for old in sorted(path.parent.glob("round_*"))[:-KEPT_ROUNDS]:
            old.unlink()

    return finish


def _read(path: Path) -> _Kept:
    data = read_sealed(path, ADVICE)
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        groups, header = unpack(data[end:])
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    return _Kept(header["asked"], data[8:end], groups.get("memory", {}))
