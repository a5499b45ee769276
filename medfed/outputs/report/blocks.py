"""Tables and figures with their captions, each of which says whether the data are a phantom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from medfed.outputs.report.markup import Markup, lines, tag


@dataclass(frozen=True)
class Cell:
    """A text, the value that it is sorted by, and its mark: "best", "second" or ""."""

    text: object
    value: object = None
    mark: str = ""


def table_block(
    caption: str, data_label: str, head: Sequence[str], body: Sequence[Sequence[object]],
    foot: Sequence[Sequence[object]] = (), texts: Sequence[int] = (0,),
) -> Markup:
    """A table that a click on a head sorts, in a frame of its own that scrolls where it is wider than the screen.

    Args:
        body: rows of Cells or plain values; the first of a row is its header.
        foot: rows that stay below when the others are sorted.
        texts: the columns that are texts, to the left; the others are numbers.
    """
    kinds = ["text" if place in texts else None for place in range(len(head))]
    columns = [tag("th", name, scope="col", class_=kind) for name, kind in zip(head, kinds)]
    table = tag(
        "table",
        "\n", tag("thead", tag("tr", *columns)),
        "\n", tag("tbody", "\n", lines(*(_row(row, texts) for row in body))),
        *(["\n", tag("tfoot", "\n", lines(*(_row(row, texts) for row in foot)))] if foot else []),
        class_="sortable",
    )
    told = f"{caption}. {data_label}."
    frame = tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=f"Table: {caption}")
    return tag("figure", "\n", tag("figcaption", told), "\n", frame, class_="table")


def figure_block(caption: str, data_label: str, *content: Markup, class_: str = "picture") -> Markup:
    """Something drawn, with its caption below."""
    return tag("figure", "\n", lines(*content), "\n", tag("figcaption", f"{caption}. {data_label}."), class_=class_)


def legend(entries: Sequence[tuple[Markup, str]]) -> Markup | None:
    """(swatch, text) in a row; None for none."""
    if not entries:
        return None
    return tag("ul", *(tag("li", swatch, " ", text) for swatch, text in entries), class_="legend")


def _row(row: Sequence[object], texts: Sequence[int]) -> Markup:
    cells = [value if isinstance(value, Cell) else Cell(value) for value in row]
    written = []
    for place, cell in enumerate(cells):
        kinds = [cell.mark, "text" if place in texts else ""]
        attributes = {"class_": " ".join(filter(None, kinds)) or None, "data_value": cell.value}
        styled = {"best": "strong", "second": "u"}.get(cell.mark)
        text = tag(styled, cell.text) if styled else cell.text
        written.append(tag("td", text, **attributes) if place else tag("th", text, scope="row", **attributes))
    return tag("tr", *written)
