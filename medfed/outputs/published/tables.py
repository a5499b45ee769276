"""Published result tables of the papers as data, including which printed averages are not the mean of their row.

Each table is one YAML file in `medfed/outputs/published`. Numbers of different papers must not be ranked together,
because networks, data splits, numbers of rounds, and who ran the baselines differ. For example, the accuracy of CCST on
PACS is 86.52 in its own paper, 79.00 in StableFDG's and 78.28 in FISC's. `medfed.reproduction` names the commands that
produce such a table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path

from medfed.config import strict_yaml, validation

FOLDER = Path(__file__).parent
DIRECTIONS = ("higher", "lower")
CENT = Decimal("0.01")  # precision of printed averages


@dataclass(frozen=True)
class PublishedRow:
    """Published numbers of one method: one row of a table of a paper.

    Args:
        method: the method in the notation of `python -m medfed.evaluate --methods`, including settings, for example
            `ccst:style=single,k=1`. A method that medfed does not have is written in the same style.
        printed: name of the method in the paper.
        values: one number for each column; None where the number cannot be read.
        average: printed average; None if the paper has none.
        rounded_to: precision of the printed numbers, such as 0.01 for two decimals. A difference up to this value
            between the printed average and the mean is explained by rounding. Below 0.01, each number is shown with as
            many decimals as it has.
    """

    method: str
    printed: str
    values: tuple[float | None, ...]
    average: float | None = None
    rounded_to: float = 0.01

    def mean(self) -> Decimal:
        """Return the exact mean of those of the row's numbers that can be read, computed in decimal arithmetic."""
        known = [Decimal(repr(value)) for value in self.values if value is not None]
        return sum(known, Decimal(0)) / len(known)

    def text(self, value: float | None) -> str:
        """Return a number of this row with the decimals of the paper; "-" for None.

        Args:
            value: one of `values`, or `average`.
        """
        if value is None:
            return "-"
        return f"{value:g}" if self.rounded_to < 0.01 else f"{value:.{1 if self.rounded_to == 0.1 else 2}f}"

    def average_is_wrong(self) -> bool:
        """Return whether the paper's average differs from the mean of the row's numbers by more than `rounded_to`.

        `rounded_to` is the precision of the printed numbers, usually 0.01. The result is False if the paper printed no
        average for this row, or if one of its numbers cannot be read.
        """
        if self.average is None or None in self.values:
            return False
        return abs(Decimal(repr(self.average)) - self.mean()) > Decimal(repr(self.rounded_to))


@dataclass(frozen=True)
class PublishedBlock:
    """Part of a published table whose numbers can be compared: the methods' results on one dataset in one metric.

    Args:
        title: title of the block.
        dataset: name of the dataset.
        metric: name of the metric.
        unit: unit of all numbers; "%" for Dice and accuracy, "" for numbers without a unit.
        direction: "higher" or "lower": which numbers are better.
        column: meaning of the columns, for example "unseen site".
        columns: names of the columns.
        rows: one row for each method.
        part: "validation" or "test" if two sites are left out; otherwise "".
        legend: long names of the columns; may be empty.
        structure: the structure whose scores the block contains, if `measured_as` is set; otherwise "".
        measured_as: the column of `cases.csv` that has the definition of this block's metric, if its name does not
            tell; "" otherwise. The scores of a comparison in this column are shown below the block.
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
        """Return the published numbers of a method.

        Args:
            method: the method as in `PublishedRow.method`, for example `ccst:style=single,k=1`.

        Raises:
            KeyError: if the block has no row of this method.
        """
        return {row.method: row for row in self.rows}[method]


@dataclass(frozen=True)
class Misprint:
    """A printed average of a published table that is not the mean of its row.

    Args:
        block: title of the part of the table (one dataset and one metric) that contains the row.
        method: the method of the row, as in `PublishedRow.method`.
        printed: printed average.
        mean: mean of the printed numbers, rounded to two decimals.
    """

    block: str
    method: str
    printed: float
    mean: float


@dataclass(frozen=True)
class PublishedTable:
    """One table of one paper: its numbers, where they are from, and which printed averages are wrong.

    Args:
        paper: short name of the paper.
        citation: full citation.
        table: number of the table.
        backbone: network of the experiments.
        split: split of the data.
        baselines: who ran the other methods.
        blocks: parts of the table, one for each dataset and metric.
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
        """Return the part of the table (one dataset and one metric) with the given title.

        Args:
            title: value of `PublishedBlock.title`.

        Raises:
            KeyError: if the table has no block with this title.
        """
        return {block.title: block for block in self.blocks}[title]

    def wrong_averages(self) -> tuple[Misprint, ...]:
        """Return the printed averages of the table that are not the mean of their row.

        The mean of every row is computed again. An average is wrong if it differs from the mean by more than the row's
        `rounded_to`. The result should be equal to the field `misprints`.
        """
        return tuple(
            Misprint(block.title, row.method, row.average, float(row.mean().quantize(CENT, ROUND_HALF_UP)))
            for block in self.blocks
            for row in block.rows
            if row.average is not None and row.average_is_wrong()
        )


def table_names() -> tuple[str, ...]:
    """Return the sorted names of all published tables that medfed has, for example "ccst_table_1"."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


@cache
def load_table(name: str) -> PublishedTable:
    """Read a published table from its YAML file, once in a process.

    Args:
        name: name of the table, from `table_names`.

    Returns:
        The table.

    Raises:
        UserError: if there is no such table, or if its file has wrong content.
    """
    path = FOLDER / f"{name}.yaml"
    document = strict_yaml.parse(strict_yaml.read(path), str(path))
    return validation.load_settings(PublishedTable, document, str(path))
