"""The papers' own tables, as data: what was printed, where, and which printed averages are not those of their rows.

One YAML file a table, in `medfed/outputs/published`. Numbers of different papers are not to be ranked together:
networks, splits, rounds and who ran the baselines differ (CCST on PACS is 86.52 in its own paper, 79.00 in StableFDG's,
78.28 in FISC's). Of FISC's Table 6 only two wrong averages are known to us, so it is not here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from medfed.config import strict_yaml, validation

FOLDER = Path(__file__).parent
DIRECTIONS = ("higher", "lower")
CENT = Decimal("0.01")  # to which averages are printed


@dataclass(frozen=True)
class PublishedRow:
    """One method.

    method: as `python -m medfed.evaluate --methods` takes it, settings included (`ccst:style=single,k=1`), where medfed
        has the method; otherwise the name in that spelling.
    printed: as the paper calls it.
    values: one a column.
    average: as printed; None where the paper has none.
    rounded_to: how finely it is printed, and so how far it may be from the mean: COPA's numbers have one decimal.
    """

    method: str
    printed: str
    values: tuple[float, ...]
    average: float | None = None
    rounded_to: float = 0.01

    def mean(self) -> Decimal:
        """What the average should be, from the printed decimals."""
        return sum((Decimal(repr(value)) for value in self.values), Decimal(0)) / len(self.values)

    def average_is_wrong(self) -> bool:
        """Whether the printed average is further from the mean of the row than rounding explains."""
        if self.average is None:
            return False
        return abs(Decimal(repr(self.average)) - self.mean()) > Decimal(repr(self.rounded_to))


@dataclass(frozen=True)
class PublishedBlock:
    """Rows that are comparable: one dataset, one measure.

    unit: of every number; "%" of Dice and accuracy.
    direction: whether "higher" or "lower" is better.
    column: what a column is, such as "unseen site".
    part: "validation" or "test" where two domains are left out.
    legend: long names of the columns.
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

    def __post_init__(self) -> None:
        if self.direction not in DIRECTIONS:
            raise ValueError(f"direction must be one of {', '.join(DIRECTIONS)}, got '{self.direction}'")
        for row in self.rows:
            if len(row.values) != len(self.columns):
                n, expected = len(row.values), len(self.columns)
                raise ValueError(f"{self.title}: {row.printed} has {n} values, expected {expected}")

    def row(self, method: str) -> PublishedRow:
        """The row of a method; KeyError if there is none."""
        return {row.method: row for row in self.rows}[method]


@dataclass(frozen=True)
class Misprint:
    """A printed average that is not the mean of its row, for a footnote."""

    block: str
    method: str
    printed: float
    mean: float


@dataclass(frozen=True)
class PublishedTable:
    """One table of one paper.

    baselines: who ran the other methods.
    notes: what else a reader must know.
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
        """The block of a title; KeyError if there is none."""
        return {block.title: block for block in self.blocks}[title]

    def wrong_averages(self) -> tuple[Misprint, ...]:
        """What `misprints` should list: every row's mean, recomputed and compared (`PublishedRow.is_wrong`)."""
        return tuple(
            Misprint(block.title, row.method, row.average, float(row.mean().quantize(CENT, ROUND_HALF_UP)))
            for block in self.blocks
            for row in block.rows
            if row.average is not None and row.average_is_wrong()
        )


def table_names() -> tuple[str, ...]:
    """Names of the tables, such as "ccst_table_1"."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def load_table(name: str) -> PublishedTable:
    """A table by its name.

    Raises:
        UserError: if there is none of that name, or its file is not as it should be.
    """
    path = FOLDER / f"{name}.yaml"
    document = strict_yaml.parse(strict_yaml.read(path), str(path))
    return validation.load_settings(PublishedTable, document, str(path))
