"""Published result tables of the papers as data, one YAML file each, including printed averages that are wrong.

Numbers of different papers must not be ranked together, because networks, data splits, rounds, and who ran the
baselines differ. For example, the accuracy of CCST on PACS is 86.52 in its own paper, 79.00 in StableFDG's and 78.28
in FISC's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from medfed.config import strict_yaml
from medfed.core.bounds import load_settings

FOLDER = Path(__file__).parent
DIRECTIONS = ("higher", "lower")


@dataclass(frozen=True)
class PublishedRow:
    """Published numbers of one method: one row of a table of a paper."""

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


@dataclass(frozen=True)
class PublishedBlock:
    """Part of a published table whose numbers can be compared: the methods' results on one dataset in one metric.
    Scores of a comparison in the column `measured_as` of `cases.csv`, if set, have the same definition."""

    title: str
    dataset: str
    metric: str
    unit: str  # "%" for Dice and accuracy, "" for numbers without a unit
    direction: str  # "higher" or "lower": which numbers are better
    column: str  # meaning of the columns, such as "unseen site"
    columns: tuple[str, ...]
    rows: tuple[PublishedRow, ...]
    part: str = ""  # "validation" or "test" if two sites are left out
    legend: dict[str, str] = field(default_factory=dict)  # long names of the columns
    structure: str = ""  # whose scores the block contains, if `measured_as` is set
    measured_as: str = ""  # column of `cases.csv`, if the metric's name does not say its definition

    def __post_init__(self) -> None:
        if self.direction not in DIRECTIONS:
            raise ValueError(f"direction must be one of {', '.join(DIRECTIONS)}, got '{self.direction}'")
        for row in self.rows:
            if len(row.values) != len(self.columns):
                n, expected = len(row.values), len(self.columns)
                raise ValueError(f"{self.title}: {row.printed} has {n} values, expected {expected}")

    def row(self, method: str) -> PublishedRow:
        """The numbers of a method (`PublishedRow.method`); KeyError if the block does not have it."""
        return {row.method: row for row in self.rows}[method]


@dataclass(frozen=True)
class Misprint:
    """A printed average that is not the mean of its row; `mean` is rounded to two decimals."""

    block: str
    method: str
    printed: float
    mean: float


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
    misprints: tuple[Misprint, ...] = ()
    notes: tuple[str, ...] = ()

    def block(self, title: str) -> PublishedBlock:
        """The block with this title; KeyError if the table has none."""
        return {block.title: block for block in self.blocks}[title]


def table_names() -> tuple[str, ...]:
    """Sorted, for example "ccst_table_1"."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


@cache
def load_table(name: str) -> PublishedTable:
    """The published table of a name such as "ccst_table_1"; UserError if it is unknown or its file is wrong."""
    path = FOLDER / f"{name}.yaml"
    document = strict_yaml.parse(strict_yaml.read(path), str(path))
    return load_settings(PublishedTable, document, str(path))
