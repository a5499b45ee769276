"""Published result tables of the papers as data, one YAML file each, including printed averages that are wrong.

Numbers of different papers must not be ranked together, because networks, data splits, numbers of rounds, and who ran
the baselines differ. For example, the accuracy of CCST on PACS is 86.52 in its own paper, 79.00 in StableFDG's and
78.28 in FISC's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from medfed.config import strict_yaml, validation

FOLDER = Path(__file__).parent
DIRECTIONS = ("higher", "lower")


@dataclass(frozen=True)
class PublishedRow:
    """Published numbers of one method: one row of a table of a paper.

    Args:
        method: in the notation of `python -m medfed.evaluate --methods`, for example `ccst:style=single,k=1`. A method
            that medfed does not have is written in the same style.
        printed: name of the method in the paper.
        values: one number for each column; None where the number cannot be read.
        average: printed average; None if the paper has none.
        rounded_to: precision of the printed numbers, such as 0.01 for two decimals. Below 0.01, each number is shown
            with as many decimals as it has.
    """

    method: str
    printed: str
    values: tuple[float | None, ...]
    average: float | None = None
    rounded_to: float = 0.01

    def text(self, value: float | None) -> str:
        """A number with the decimals of the paper; "-" for None."""
        if value is None:
            return "-"
        return f"{value:g}" if self.rounded_to < 0.01 else f"{value:.{1 if self.rounded_to == 0.1 else 2}f}"


@dataclass(frozen=True)
class PublishedBlock:
    """Part of a published table whose numbers can be compared: the methods' results on one dataset in one metric.

    Args:
        unit: "%" for Dice and accuracy, "" for numbers without a unit.
        direction: "higher" or "lower": which numbers are better.
        column: meaning of the columns, for example "unseen site".
        part: "validation" or "test" if two sites are left out; otherwise "".
        legend: long names of the columns; may be empty.
        structure: the structure whose scores the block contains, if `measured_as` is set; otherwise "".
        measured_as: the column of `cases.csv` that has the definition of this block's metric, if its name does not say
            it; otherwise "". The scores of a comparison in this column are shown below the block.
    """

    title: str
    dataset: str
    metric: str
    unit: str
    direction: str
    column: str
    columns: tuple[str, ...]
    rows: tuple[PublishedRow, ...]
    part: str = ""
    legend: dict[str, str] = field(default_factory=dict)
    structure: str = ""
    measured_as: str = ""

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
    """One table of one paper.

    Args:
        paper: short name of the paper.
        citation: full citation.
        backbone: network of the experiments.
        split: split of the data.
        baselines: who ran the other methods.
        misprints: printed averages that are not the mean of their row.
        notes: other remarks for the reader.
    """

    paper: str
    citation: str
    table: str
    backbone: str
    split: str
    baselines: str
    blocks: tuple[PublishedBlock, ...]
    misprints: tuple[Misprint, ...] = ()
    notes: tuple[str, ...] = ()

    def block(self, title: str) -> PublishedBlock:
        """KeyError if the table has no block with this title."""
        return {block.title: block for block in self.blocks}[title]


def table_names() -> tuple[str, ...]:
    """Sorted, for example "ccst_table_1"."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


@cache
def load_table(name: str) -> PublishedTable:
    """UserError if there is no such table, or if its file has wrong content."""
    path = FOLDER / f"{name}.yaml"
    document = strict_yaml.parse(strict_yaml.read(path), str(path))
    return validation.load_settings(PublishedTable, document, str(path))
