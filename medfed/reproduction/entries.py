"""The tables and figures of the papers as data: what each one needs, how it is run, or why it cannot be run.

Each paper is one YAML file in `medfed/reproduction`. `data.yaml` describes the datasets that the entries name.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from medfed.config import strict_yaml
from medfed.core.bounds import PositiveInt, load_settings
from medfed.core.errors import UserError
from medfed.core.registry import suggestion
from medfed.outputs.published.tables import PublishedBlock, load_table
from medfed.results.text_tables import text_table, to_terminal

if TYPE_CHECKING:  # the list of all tables and figures needs no torch
    from medfed.config.schema import Config

FOLDER = Path(__file__).parent
WIDTH = 116  # characters of a line
NOTE = """\
States: runs: the command makes it, partly: the command makes a part of it, cannot: it cannot be made.

`python -m medfed.reproduce PAPER` prints the data, commands and differences of each table and figure.
`python -m medfed.reproduce PAPER ENTRY` runs one; with --small in minutes, on few, small images."""
PAPERS = ("elcfs", "ccst", "stable_fdg", "fisc")
Name = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
Texts = tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """A dataset that entries need. `small` and `phantom` are changes of the config, as texts KEY=VALUE."""

    title: str  # what the images are
    where: str  # how to get the dataset
    small: Texts = ()  # for a run on few, small images
    phantom: Texts = ()  # for a phantom (synthetic images) instead
    phantom_sites: Texts = ()  # the unseen sites of a phantom of another dataset; empty takes all
    stand_in: str = ""  # what the phantom is, if it is a phantom of another dataset with other sites


@dataclass(frozen=True)
class Result:
    """Scores that are shown: those of a published block, or of a structure and metric without readable numbers."""

    table: str = ""  # such as "elcfs_table_2"
    block: str = ""
    metric: str = ""
    structure: str = "all"
    at: Literal["unseen", "validation"] = "unseen"

    def published(self) -> PublishedBlock:
        """The block of the paper; one without numbers if they cannot be read."""
        if self.table:
            return load_table(self.table).block(self.block)
        return PublishedBlock("", self.metric, {}, (), structure=self.structure, at=self.at)


@dataclass(frozen=True)
class Part:
    """One comparison, a call of `medfed.evaluate`; with FedAvg, which must beat a prediction that ignores the image."""

    name: Name  # also of its folder
    data: Name  # in `data.yaml`
    config: str
    methods: Texts
    set: Texts = ()  # changes of the config, as texts KEY=VALUE
    vary: Texts = ()  # varied settings, as texts KEY=V1,V2,...
    sites: Texts = ()  # unseen sites; empty takes all
    pairs: Texts = ()  # UNSEEN/VALIDATION; empty leaves one site out
    seeds: PositiveInt = 1
    results: tuple[Result, ...] = ()
    figures: Texts = ()  # in the run folders, that correspond to the paper's figure
    costs: bool = False
    # What `--small` changes: other fields of this class; `set` comes after the changes of the dataset; `run: false`
    # leaves the part out without --data.
    small: dict[str, bool | Texts] = field(default_factory=dict)
    stand_in: str = ""  # what the images are, if they are not those of the paper's dataset

    def command(self, out: Path | None = None) -> str:
        """The call of `medfed.evaluate` as a user can type it; None leaves `--out` away."""
        words = [self.config, "--leave-two-sites-out" if self.pairs else "--leave-one-site-out"]
        for flag, values in (("pairs", self.pairs), ("methods", self.methods), ("sites", self.sites)):
            words += [f"--{flag}", *values] if values else []
        words += [word for setting in self.vary for word in ("--vary", setting)]
        words += ["--seeds", str(self.seeds)] if self.seeds > 1 else []
        words += [word for change in self.set for word in ("--set", change)]
        words += ["--no-equal-effort", *(["--out", str(out)] if out else [])]  # without it, as the papers compare
        return f"python -m medfed.evaluate {shlex.join(words)}"

    def load(self) -> Config:
        """The base config; UserError if a change does not fit it."""
        from medfed.config.early import find_config
        from medfed.config.schema import load

        return load(find_config(self.config), self.set)


@dataclass(frozen=True)
class Entry:
    """A table or figure of a paper."""

    name: Name  # such as "table_1" or "figure_6b"
    title: str
    parts: tuple[Part, ...] = ()  # the comparisons that make it; empty if it cannot be made
    missing: str = ""  # what cannot be made, and why
    departs: Texts = ()  # differences from the paper that the configs do not list
    printed: tuple[Result, ...] = ()  # numbers of the paper to which no scores of a part correspond

    @property
    def state(self) -> str:
        return "cannot" if not self.parts else "partly" if self.missing else "runs"

    @property
    def heading(self) -> str:
        """The name as a paper writes it, such as "Table 1" or "Figure 6b"."""
        kind, _, number = self.name.partition("_")
        return f"{kind.capitalize()} {number}"

    @property
    def sources(self) -> dict[str, Source]:
        """The datasets of the parts by name."""
        return {part.data: sources()[part.data] for part in self.parts}


@dataclass(frozen=True)
class Paper:
    """All tables and figures of a paper, in its order."""

    title: str
    citation: str
    read: str  # what of the paper was available to read, and what was not
    entries: tuple[Entry, ...]

    def entry(self, name: str) -> Entry:
        """Find "table_2" or a similar spelling (capital letters, spaces, "fig"); UserError without such an entry."""
        plain = name.lower().replace(" ", "_").replace("fig_", "figure_")
        known = {entry.name: entry for entry in self.entries}
        if plain not in known:
            raise UserError(f"{name}: {self.title} has no such table or figure. {suggestion(plain, known)}")
        return known[plain]


@cache
def load_paper(name: str) -> Paper:
    """The tables and figures of one of `PAPERS`."""
    if name not in PAPERS:
        raise UserError(f"{name}: no such paper. {suggestion(name, PAPERS)}")
    return load_settings(Paper, _read(name), str(FOLDER / f"{name}.yaml"))


@cache
def sources() -> dict[str, Source]:
    """The datasets of `data.yaml` by name."""
    return {name: load_settings(Source, content, f"data.yaml: {name}") for name, content in _read("data").items()}


def _read(name: str) -> Any:
    return strict_yaml.parse(strict_yaml.read(FOLDER / f"{name}.yaml"), f"{name}.yaml", "allowed")


def commands_of(
    entry: Entry,
    only: Sequence[str] = (),
    *,
    small: bool = False,
    folder: str | None = None,
    more: Sequence[str] = (),
    seeds: int | None = None,
) -> list[Part]:
    """The comparisons of the parts named in `only` (empty: all that the entry or a small run has), with all changes.

    `folder` replaces the config's folder of images; without it, a small run takes phantoms.
    """
    known = [part.name for part in entry.parts]
    if unknown := [name for name in only if name not in known]:
        raise UserError(f"--only {unknown[0]}: {entry.heading} has no such part. {suggestion(unknown[0], known)}")
    is_left_out = small and not folder and not only
    parts = [
        part
        for part in entry.parts
        if part.name in (only or known) and not (is_left_out and part.small.get("run") is False)
    ]
    if folder and len(names := list(dict.fromkeys(part.data for part in parts))) != 1:
        raise UserError(
            f"--data {folder}: {entry.heading} needs the datasets {', '.join(names) or '-'}, expected one; choose "
            f"parts with --only: {', '.join(known) or '-'}"
        )
    return [_command(part, small, folder, more, seeds) for part in parts]


def _command(part: Part, small: bool, folder: str | None, more: Sequence[str], seeds: int | None) -> Part:
    source = sources()[part.data]
    root = (f"data.root={folder}",) if folder else ()
    if not small:
        return replace(part, set=_last_of_each_key((*part.set, *root, *more)), seeds=seeds or part.seeds)
    chosen: dict[str, Any] = {"set": (), **part.small}
    chosen.pop("run", None)
    stand_in = "" if folder else source.stand_in
    if stand_in:  # its sites have other names
        chosen |= {"sites": source.phantom_sites, "pairs": ()}
    replaced = ("network.",) if folder else ("network.", "data.")  # a small run has its own network, a phantom its data
    own = (text for text in part.set if not text.startswith(replaced))
    changes = (*own, *(root or source.phantom), *source.small, *chosen.pop("set"), *more)
    return replace(part, set=_last_of_each_key(changes), **chosen, seeds=seeds or 1, stand_in=stand_in)


def _last_of_each_key(changes: Sequence[str]) -> tuple[str, ...]:
    """The changes KEY=VALUE without those that a later one replaces."""
    return tuple({change.partition("=")[0]: change for change in changes}.values())


def list_papers() -> str:
    """One line for each table and figure of each paper."""
    tables = []
    for name in PAPERS:
        paper = load_paper(name)
        rows = []
        for entry in paper.entries:
            title = textwrap.shorten(entry.title, 62, placeholder=" ...")
            rows.append([entry.name, entry.state, ", ".join(entry.sources) or "-", title])
        table = to_terminal(text_table("", ["entry", "state", "data", "title"], rows, n_words=4))
        tables.append(f"{_wrapped(f'{name}: {paper.citation}')}\n{table}")
    return "\n\n".join([*tables, NOTE])


def describe_paper(name: str) -> str:
    paper = load_paper(name)
    head = "\n".join(map(_wrapped, (f"{paper.title}: {paper.citation}", f"Read: {paper.read}")))
    return "\n\n".join([head, *(describe_entry(name, entry, commands_of(entry)) for entry in paper.entries)])


def describe_entry(name: str, entry: Entry, commands: Sequence[Part]) -> str:
    """What a table or figure needs, its commands, and how it differs from the paper."""
    lines = [f"{name} {entry.name}: {entry.title} [{entry.state}]"]
    lines += [_wrapped(f"data {key}: {source.title}. {source.where}", "  ") for key, source in entry.sources.items()]
    lines += [f"  {part.name}: {part.command()}" for part in commands]
    lines += [_wrapped(f"departs: {text}", "  ") for text in entry.departs]
    lines += [_wrapped(f"not made: {entry.missing}", "  ")] * bool(entry.missing)
    return "\n".join(lines)


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)
