"""All sites in one process, one after another; messages still cross as bytes, so nothing else can leak."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from medfed.core.errors import UserError
from medfed.core.files import read_sealed, seal, stage, write_atomically
from medfed.federation.message import Message, digest, failed, pack, unpack
from medfed.federation.settings import Federation
from medfed.federation.site import Site
from medfed.federation.validation_site import ValidationSite

UNKNOWN = -1  # in place of the round that a site's memory is of, where it stopped half way
KEPT_ROUNDS = 2  # a coordinator that was killed goes back one round at most
WITHOUT_MEMORY = ".without_memory.json"  # no site's name begins with a dot
ADVICE = "put back a copy, or start another run with --out"


@dataclass
class InProcess:
    """The engine of simulations and of the first run on a laptop.

    With a folder, the sites that train in a round hold their memory here, and no others: it rests in their files. A
    site that has no memory (as where `training.optimizer_state` is "reset") has a file as long as the coordinator may
    ask for its answer again, which is to the end of the round. Sites that keep entries of the network for themselves
    always hold theirs, as they validate with them.

    Args:
        members: the sites.
        folder: where each site keeps its memory and its last answers, so that a killed run goes on to the same bits
            and repeats no site's finished round; None keeps nothing.
        on_answer: told the kind, the site, and how many of how many sites have answered.
        onlooker: the validation site, if there is one. It is not among `sites`.
        settings, plan, source: the federation's, and for engines whose sites are built elsewhere the whole config as
            YAML and what to call it.
    """

    members: list[Site]
    folder: Path | None = None
    on_answer: Callable[[str, str, int, int], None] | None = None
    onlooker: ValidationSite | None = None
    settings: Federation = Federation()
    plan: str = ""
    source: str = ""
    _trained: dict[str, int] = field(default_factory=dict)  # the round that a site last trained in
    _resting: set[str] = field(default_factory=set)  # sites whose memory is in their file alone

    def sites(self) -> list[str]:
        return sorted(site.name for site in self.members)

    def exchange(self, kind: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Each site in turn, in the order of their names."""
        by_name = {site.name: site for site in [*self.members, *([self.onlooker] if self.onlooker else [])]}
        answers = {}
        times = Counter(id(message) for message in messages.values())
        letters = {}  # what goes to several sites is written once, what goes to one not before its turn
        number = next(iter(messages.values())).facts["round"] if messages else 0
        if kind == "train" and self.folder:
            self._rest_others(messages)
            self._drop_answers(number)
        files: list[Future[None]] = []
        with ThreadPoolExecutor(1) as disk:  # the next site trains while the disk takes this one's file
            for index, name in enumerate(sorted(messages), start=1):
                message = messages[name]
                letter = letters.get(id(message)) or message.to_bytes()
                if times[id(message)] > 1:
                    letters[id(message)] = letter
                answer, commit = self._deliver(by_name[name], letter)
                answers[name] = Message.from_bytes(answer)
                files += [disk.submit(commit)] if commit else []
                if self.on_answer:
                    self.on_answer(kind, name, index, len(messages))
        for file in files:
            file.result()  # a full disk is told here
        if kind == "train" and self.folder:
            self._note_without_memory([by_name[name] for name in sorted(messages)], number)
        return answers

    def _deliver(self, site: Site | ValidationSite, letter: bytes) -> tuple[bytes, Callable[[], None] | None]:
        """The answer, and what puts the site's new file in its place, if there is one."""
        message = Message.from_bytes(letter)
        if self.folder is None or message.kind != "train":
            if self.folder and "last" in message.facts and isinstance(site, Site) and site.local_keys:
                self._go_back(site, message.facts["last"])
            return self._answer(site, message), None
        number = message.facts["round"]
        asked, path = digest(letter, site.terms().encode()), self._path(site.name, number)
        if path.is_file() and (kept := _read(path)).asked == asked:  # it has answered this very letter before
            site.memory, answer, commit = kept.memory, kept.answer, None
        else:
            last = message.facts.get("last", 0)
            self._go_back(site, last)
            self._trained[site.name] = UNKNOWN  # until it is done: what stops half way leaves half a memory
            answer = self._answer(site, message)
            if Message.from_bytes(answer).kind == "failed":
                return answer, None
            commit = _stage(path, asked, answer, site.memory, self._path(site.name, last))
        self._resting.discard(site.name)
        self._trained[site.name] = number
        return answer, commit

    def _answer(self, site: Site | ValidationSite, message: Message) -> bytes:
        """What a site cannot do is an answer too, where the federation goes on without it."""
        try:
            return site.answer(message).to_bytes()
        except UserError as why:
            if self.settings.on_bad_update != "drop":
                raise
            return failed(str(why)).to_bytes()

    def restore(self, took_part: Mapping[str, int]) -> None:
        """Give every site the memory that it had after the round that it last took part in (`State.took_part`).

        Raises:
            UserError: if a site's file is gone; its optimiser would silently start again.
        """
        for site in self.members:
            if number := took_part.get(site.name):
                site.memory = self._memory_after(site.name, number)
                self._trained[site.name] = number
                if number < max(took_part.values()):
                    self._rest(site)

    def close(self) -> None:
        """After the last exchange: nothing runs that must be ended."""

    def _memory_after(self, name: str, number: int) -> dict[str, Tensor]:
        """What a site kept after a round that counted; nothing before the first."""
        path = self._path(name, number)
        if path.is_file():
            return _read(path).memory
        if number and name not in self._without_memory():
            raise UserError(f"{path}: is missing, and with it what {name} keeps between rounds; {ADVICE}")
        return {}

    def _go_back(self, site: Site, last: int) -> None:
        """Give a site the memory of the round that counted last, where it has another one at hand."""
        if self._trained.get(site.name, 0) != last or site.name in self._resting:
            site.memory = self._memory_after(site.name, last)
            self._trained[site.name] = last
            self._resting.discard(site.name)

    def _rest_others(self, messages: Mapping[str, Message]) -> None:
        for site in self.members:
            if site.name not in messages:
                self._rest(site)

    def _rest(self, site: Site) -> None:
        """Let go of a site's memory, which its file has."""
        if site.memory and not site.local_keys and site.name in self._trained:
            site.memory = {}
            self._resting.add(site.name)

    def _drop_answers(self, number: int) -> None:
        """Remove what sites without memory answered before this round: the coordinator has written that down."""
        for name, rounds in self._without_memory().items():
            for path in (self._path(name, before) for before in rounds if before < number):
                path.unlink(missing_ok=True)
            if (folder := self.folder / name).is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def _without_memory(self) -> dict[str, list[int]]:
        """The last rounds that each site ended without memory: one file for all, if there is such a site."""
        path = self.folder / WITHOUT_MEMORY
        return json.loads(path.read_text()) if path.is_file() else {}

    def _note_without_memory(self, sites: list[Site], number: int) -> None:
        """Write down which of the sites that trained in this round have no memory after it."""
        old = self._without_memory()
        new = dict(old)
        for site in sites:
            rounds = [before for before in old.get(site.name, []) if before < number]
            rounds = rounds if site.memory else [*rounds, number][-KEPT_ROUNDS:]
            if rounds or site.name in old:
                new[site.name] = rounds
        if new != old:
            write_atomically(self.folder / WITHOUT_MEMORY, json.dumps(new, sort_keys=True))

    def _path(self, site: str, number: int) -> Path:
        return self.folder / site / f"round_{number:05d}.site"


@dataclass(frozen=True)
class _Kept:
    """A site's file: the digest of what it was asked, its answer, and its memory after that."""

    asked: str
    answer: bytes
    memory: dict[str, Tensor]


def _stage(path: Path, asked: str, answer: bytes, memory: Mapping[str, Tensor], last: Path) -> Callable[[], None]:
    """The answer goes in as it is: its bytes, after their number.

    Args:
        last: the file of the round that counted last, which is kept until another counts.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = len(answer).to_bytes(8, "little"), answer, pack({"memory": memory}, {"asked": asked})
    commit = stage(path, seal(*parts), *parts)

    def finish() -> None:
        commit()
        for old in sorted(path.parent.glob("round_*"))[:-KEPT_ROUNDS]:
            if old != last:
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
