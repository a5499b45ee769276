"""The elements of a page as plain data. `templates/macros.html.jinja` holds their HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Cell:
    """One cell of a table in the HTML report.

    Attributes:
        text: what the cell shows.
        value: what the column is sorted by; None sorts by the text.
        mark: "best" is shown bold, "second" underlined, "" plain.
        code: a name from a file, shown on a line of its own in a fixed-width font; "" for none.
        note: text shown behind `text` and `code`; "" for none.
    """

    text: object
    value: object = None
    mark: str = ""
    code: str = ""
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table with its caption. A click on a column's heading sorts the body.

    Attributes:
        caption: what the table shows.
        data_label: which data is shown, such as "PHANTOM data"; the text at the end of the caption.
        head: the headings of the columns.
        body: the rows; the first cell of a row is the row's heading.
        foot: rows below the body, which are not sorted.
        text_columns: positions of the columns that hold text and are aligned to the left; other columns hold numbers.
        notes: sentences below the table.
    """

    caption: str
    data_label: str
    head: Sequence[str]
    body: Sequence[Sequence[Cell]]
    foot: Sequence[Sequence[Cell]] = ()
    text_columns: Sequence[int] = (0,)
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class LegendEntry:
    """One entry of a chart's legend: a short piece of the curve, and its name.

    Attributes:
        name: the name of the curve.
        colour: a CSS colour.
        width: width of the line in pixels.
        dashes: SVG's `stroke-dasharray`; "" for a solid line.
        opacity: opacity of the line, in [0, 1].
    """

    name: str
    colour: str
    width: float
    dashes: str = ""
    opacity: float = 1.0


@dataclass(frozen=True)
class Chart:
    """A figure as SVG, with its caption.

    Attributes:
        caption: what the chart shows.
        data_label: which data is shown, such as "PHANTOM data"; the text at the end of the caption.
        svg: the SVG element.
        legend: the entries of the legend below the chart.
    """

    caption: str
    data_label: str
    svg: Markup
    legend: Sequence[LegendEntry] = ()


@dataclass(frozen=True)
class EmbeddedImage:
    """An image inside the page, with its caption.

    Attributes:
        caption: what the image shows. The caption is also the description for readers who cannot see the image.
        data_label: which data is shown, such as "PHANTOM data"; the text at the end of the caption.
        source: the file's content as a `data:` address.
        width: width of the image in pixels.
        height: height of the image in pixels.
    """

    caption: str
    data_label: str
    source: str
    width: int
    height: int


@dataclass(frozen=True)
class Section:
    """A section of an HTML page.

    Attributes:
        anchor: the section's id, for links.
        heading: the heading.
        template: file name of the template that shows `content`.
        content: what the template needs, as the variable `section.content`.
    """

    anchor: str
    heading: str
    template: str
    content: object


def rows_of_cells(rows: Sequence[Sequence[object]]) -> list[list[Cell]]:
    """Return the rows of a table with every value in a `Cell`. A value that is a `Cell` already stays as it is.

    Args:
        rows: the rows of the table, each with one value per column.
    """
    return [[value if isinstance(value, Cell) else Cell(value) for value in row] for row in rows]
