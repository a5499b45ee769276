"""Published result tables of the papers as data, one YAML file each, including printed averages that are wrong.

Numbers of different papers must not be ranked together, because networks, data splits, rounds, and who ran the
baselines differ. For example, the accuracy of CCST on PACS is 86.52 in its own paper, 79.00 in StableFDG's and 78.28
in FISC's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Literal

from medfed.config import strict_yaml
from medfed.core.bounds import load_settings

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class PublishedRow:
    """Published numbers of one method."""

    method: str  # as `medfed.evaluate --methods` takes it, such as `ccst:style=single,k=1`
    printed: str  # name of the method in the paper
    values: tuple[float | None, ...]  # one for each column; None where the number cannot be read
    average: float | None = None  # as printed; None if the paper has none
    rounded_to: float = 0.01  # precision of the numbers; below 0.01, each has as many decimals as it has

    def text(self, value: float | None) -> str:
        """A number with the decimals of the paper; "-" for None."""
        if value is None:
            return "-"
        return f"{value:g}" if self.rounded_to < 0.01 else f"{value:.{1 if self.rounded_to == 0.1 else 2}f}"

    @property
    def misprint(self) -> float | None:
        """The mean of the row, if the printed average differs from it by more than the precision; None otherwise."""
        if self.average is None or None in self.values:
            return None
        mean = fmean(value for value in self.values if value is not None)
        return mean if round(abs(self.average - mean), 6) > self.rounded_to else None


@dataclass(frozen=True)
class PublishedBlock:
    """The results of several methods on one dataset in one metric: a part of a published table."""

    title: str
    metric: str  # ours, such as "dice", or the paper's word for what medfed does not compute
    columns: dict[str, str]  # by printed name: our site, varied value KEY=VALUE, or "average"; "" if we have none
    rows: tuple[PublishedRow, ...]
    dataset: str = ""
    unit: str = ""
    direction: Literal["higher", "lower"] = "higher"  # which numbers are better
    column: str = ""  # meaning of the columns, such as "unseen site"
    structure: str = "all"
    at: Literal["unseen", "validation", "both"] = "unseen"  # role of the sites

    @property
    def roles(self) -> tuple[str, ...]:
        return ("unseen", "validation") if self.at == "both" else (self.at,)

    @property
    def is_averaged(self) -> bool:
        return any(row.average is not None for row in self.rows)

    @property
    def heading(self) -> str:
        """For example "Disc Dice (%), higher is better; each column: unseen site"."""
        metric = "" if self.metric.lower() in self.title.lower().split() else self.metric
        measured = " ".join(filter(None, (metric, self.unit)))
        measured = f" ({measured})" * bool(measured)
        return f"{self.title}{measured}, {self.direction} is better; each column: {self.column}"

    @property
    def footnotes(self) -> tuple[str, ...]:
        """The averages that are not the mean of their row, and our names of the columns."""
        notes = [
            f"† {row.printed}: the printed average is {row.text(row.average)}, but the row's mean is {mean:.2f}"
            for row in self.rows
            if (mean := row.misprint) is not None
        ]
        names = ", ".join(f"{printed}: {ours}" for printed, ours in self.columns.items() if ours)
        return (*notes, *[names] * bool(names))


@dataclass(frozen=True)
class PublishedTable:
    """One table of one paper."""

    paper: str
    citation: str
    table: str
    backbone: str  # network of the experiments
    split: str  # of the data
    baselines: str  # who ran the other methods
    blocks: tuple[PublishedBlock, ...]
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.paper}, Table {self.table}"

    @property
    def details(self) -> tuple[str, ...]:
        network, split, who = f"network: {self.backbone}", f"split: {self.split}", f"who ran it: {self.baselines}"
        return (self.citation, network, split, who, *self.notes)

    def block(self, title: str) -> PublishedBlock:
        return {block.title: block for block in self.blocks}[title]


def table_names() -> tuple[str, ...]:
    """Sorted, for example "ccst_table_1"."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


@cache
def load_table(name: str) -> PublishedTable:
    """The published table of a name such as "ccst_table_1"."""
    path = FOLDER / f"{name}.yaml"
    return load_settings(PublishedTable, strict_yaml.parse(strict_yaml.read(path), str(path)), str(path))


def tables_of_data(data: object) -> list[PublishedTable]:
    """The published tables, and their parts, about the dataset of a config's block `data`, or that of its phantom."""
    if not isinstance(data, Mapping):
        return []
    name = str(data.get("name"))
    dataset = _plain(Path(str(data.get("root", ""))).name if name == "folder" else name.removesuffix("_phantom"))
    tables = [
        replace(table, blocks=tuple(block for block in table.blocks if _plain(block.dataset) == dataset))
        for table in map(load_table, table_names())
    ]
    return [table for table in tables if table.blocks]


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())
