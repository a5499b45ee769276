"""The elements of a page as plain data. `templates/macros.html.jinja` holds their HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: object
    value: object = None  # what the column is sorted by; None sorts by the text
    mark: str = ""  # "best" is shown bold, "second" underlined
    code: str = ""  # a name from a file, shown on a line of its own in a fixed-width font
    note: str = ""  # shown behind `text` and `code`


@dataclass(frozen=True)
class Table:
    """A table with its caption; a click on a column's heading sorts the body."""

    caption: str
    data_label: str  # at the end of the caption, such as "PHANTOM data"
    head: Sequence[str]
    body: Sequence[Sequence[Cell]]  # the first cell of a row is the row's heading
    foot: Sequence[Sequence[Cell]] = ()  # rows below the body, which are not sorted
    text_columns: Sequence[int] = (0,)  # positions of the columns that are aligned to the left; others hold numbers
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class LegendEntry:
    """A short piece of the curve (`width` in pixels, `dashes` as SVG's `stroke-dasharray`), and its name."""

    name: str
    colour: str
    width: float
    dashes: str = ""
    opacity: float = 1.0


@dataclass(frozen=True)
class Chart:
    """A figure as SVG, with its caption, which ends with `data_label`, and its legend."""

    caption: str
    data_label: str
    svg: Markup
    legend: Sequence[LegendEntry] = ()


@dataclass(frozen=True)
class EmbeddedImage:
    """An image as a `data:` address, with its size in pixels; the caption also describes it to readers who cannot see
    it."""

    caption: str
    data_label: str
    source: str
    width: int
    height: int


@dataclass(frozen=True)
class Section:
    """`template` shows `content`, as the variable `section.content`; `anchor` is the id for links."""

    anchor: str
    heading: str
    template: str
    content: object


def rows_of_cells(rows: Sequence[Sequence[object]]) -> list[list[Cell]]:
    """Put every value into a `Cell`; a value that is a `Cell` stays as it is."""
    return [[value if isinstance(value, Cell) else Cell(value) for value in row] for row in rows]
