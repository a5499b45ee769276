"""The tables and figures of the papers as data: what each one needs, how it is run, or why it cannot be run.

Each paper is one YAML file in `medfed/reproduction`. `data.yaml` describes the datasets that the entries name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from medfed.config import strict_yaml
from medfed.core.bounds import PositiveInt, load_settings
from medfed.core.errors import UserError
from medfed.core.registry import suggestion
from medfed.outputs.tables.comparison_row import BASELINE

FOLDER = Path(__file__).parent
PAPERS = ("elcfs", "ccst", "stable_fdg", "fisc")
Name = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
Texts = tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """A dataset that entries need.

    Args:
        name: name in the entries, such as "pacs".
        title: what the images are.
        where: how to get the dataset.
        columns: the name of each site by its short name in the papers' tables, such as `{A: RUNMC}`.
        small: changes of the config, as texts KEY=VALUE, for a run on few, small images.
        phantom: changes that use a phantom (synthetic images) instead; applied by `--small` without `--data`.
        phantom_sites: names of the unseen sites if the phantom stands in for another dataset; empty takes all.
        stand_in: what the phantom is, if it is a phantom of another dataset with other sites; "" otherwise.
    """

    name: Name
    title: str
    where: str
    columns: dict[str, str] = field(default_factory=dict)
    small: Texts = ()
    phantom: Texts = ()
    phantom_sites: Texts = ()
    stand_in: str = ""


@dataclass(frozen=True)
class Result:
    """One block of an entry's result: which scores of ours are shown, and beside which numbers of the paper.

    Args:
        metric: column of the comparison table, such as "dice" or "accuracy".
        structure: name of the structure; "all" for classification.
        table: name of the published table, such as "elcfs_table_2"; "" if the paper's numbers cannot be read.
        block: title of the block of the published table.
        columns: for each column of the block, the name of our site, or the varied value KEY=VALUE whose average is
            shown. Empty takes the columns of the dataset.
        at: the sites whose scores are shown: "unseen"; "validation", if two sites are left out; or "both".
    """

    metric: str
    structure: str = "all"
    table: str = ""
    block: str = ""
    columns: dict[str, str] = field(default_factory=dict)
    at: Literal["unseen", "validation", "both"] = "unseen"

    @property
    def roles(self) -> Texts:
        return ("unseen", "validation") if self.at == "both" else (self.at,)


@dataclass(frozen=True)
class Overall:
    """A block of a published table with the mean of several averages, such as that of PACS and of Office-Home. `block`
    has one column; the mean is over the average of each of the `structures` in each part of the entry."""

    metric: str
    table: str
    block: str
    structures: Texts = ("all",)


@dataclass(frozen=True)
class Small:
    """What `--small` changes in a part of an entry; None keeps the value of the part. `run`: whether `--small` runs the
    part without `--data`. `set`: further changes KEY=VALUE, after those of the dataset."""

    run: bool = True
    set: Texts = ()
    methods: Texts | None = None
    vary: Texts | None = None
    sites: Texts | None = None
    pairs: Texts | None = None


@dataclass(frozen=True)
class Part:
    """One comparison of methods: one call of `medfed.evaluate`.

    Args:
        name: name of the part and of its folder.
        data: name of the dataset in `data.yaml`.
        config: name of a config that comes with medfed.
        methods: as in `Command`; FedAvg is among them, because a table whose FedAvg is not above a trivial predictor
            has no result.
        set, vary, sites, pairs: as in `Command`.
        results: the blocks of scores to show.
        chart: "none", "bars" (a group of bars for each site) or "lines" (over the varied setting).
        figures: names of figures in the run folders that correspond to the paper's figure.
        costs: whether to show times and bytes.
        cost_table: name of the published table with the paper's times and bytes; "" if there is none.
        small: what `--small` changes.
    """

    name: Name
    data: Name
    config: str
    methods: Annotated[tuple[str, ...], Field(min_length=1)]
    set: Texts = ()
    vary: Texts = ()
    sites: Texts = ()
    pairs: Texts = ()
    seeds: PositiveInt = 1
    results: tuple[Result, ...] = ()
    chart: Literal["none", "bars", "lines"] = "none"
    figures: Texts = ()
    costs: bool = False
    cost_table: str = ""
    small: Small = Small()

    def __post_init__(self) -> None:
        for methods in (self.methods, self.small.methods):
            if methods is not None and BASELINE not in methods:
                raise ValueError(f"methods: expected {BASELINE} among them, got {', '.join(methods)}")
            if spaced := [method for method in methods or () if ", " in method]:  # separates the varied settings
                raise ValueError(f"methods: '{spaced[0]}' has a space after a comma; leave it out")


@dataclass(frozen=True)
class Entry:
    """A table or figure of a paper.

    Args:
        name: such as "table_1" or "figure_6b".
        parts: the comparisons that make it; empty if it cannot be made.
        missing: what cannot be made, and why; "" if everything can.
        departs: differences from the paper that the configs do not list.
        overall: the blocks of means over all parts, which are shown after them.
        printed: names of published tables whose numbers are shown if the entry has no parts.
    """

    name: Name
    title: str
    parts: tuple[Part, ...] = ()
    missing: str = ""
    departs: Texts = ()
    overall: tuple[Overall, ...] = ()
    printed: Texts = ()

    def __post_init__(self) -> None:
        if self.parts and self.printed:
            raise ValueError(f"{self.name}: both parts and printed; name the tables in the results of the parts")
        if not self.parts and not self.missing:
            raise ValueError(f"{self.name}: neither parts nor missing; expected one of them at least")

    @property
    def state(self) -> str:
        """ "runs" if a command makes everything, "partly" if it makes something, and "cannot" otherwise."""
        if not self.parts:
            return "cannot"
        return "partly" if self.missing else "runs"

    @property
    def heading(self) -> str:
        """The name as a paper writes it, such as "Table 1" or "Figure 6b"."""
        kind, _, number = self.name.partition("_")
        return f"{kind.capitalize()} {number}"


@dataclass(frozen=True)
class Paper:
    """All tables and figures of a paper, in its order; `read` says what of the paper was available to read, and what
    was not."""

    title: str
    citation: str
    read: str
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
    """The tables and figures of one of `PAPERS`; UserError if the file has wrong content."""
    if name not in PAPERS:
        raise UserError(f"{name}: no such paper. {suggestion(name, PAPERS)}")
    path = FOLDER / f"{name}.yaml"
    paper = load_settings(Paper, strict_yaml.parse(strict_yaml.read(path), str(path), "allowed"), str(path))
    _check_names(path, [entry.name for entry in paper.entries])
    for entry in paper.entries:
        _check_names(path, [part.name for part in entry.parts])
        for part in entry.parts:
            load_source(part.data)
    return paper


def load_source(name: str) -> Source:
    """A dataset of the papers by its name in `data.yaml`, such as "pacs"."""
    known = _sources()
    if name not in known:
        raise UserError(f"{FOLDER / 'data.yaml'}: no dataset '{name}'. {suggestion(name, known)}")
    return known[name]


@dataclass(frozen=True)
class _Sources:
    datasets: tuple[Source, ...]


@cache
def _sources() -> dict[str, Source]:
    """The datasets of `data.yaml` by name."""
    path = FOLDER / "data.yaml"
    listed = load_settings(_Sources, strict_yaml.parse(strict_yaml.read(path), str(path), "allowed"), str(path))
    _check_names(path, [source.name for source in listed.datasets])
    return {source.name: source for source in listed.datasets}


def _check_names(path: Path, names: Iterable[str]) -> None:
    """UserError if a name comes twice."""
    names = list(names)
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{path}: the name '{twice[0]}' comes twice; change one of them")
