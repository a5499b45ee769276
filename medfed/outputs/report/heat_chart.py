"""A heat map of method by unseen site as SVG: the better, the stronger the colour."""

from __future__ import annotations

from medfed.outputs.report.markup import Markup, tag
from medfed.outputs.report.scales import drawing, px, text
from medfed.outputs.tables.comparison import Block, Table

CELL, ROW, LETTER = 56, 28, 6.6  # px; a letter is about that wide
FAINTEST, STRONGEST = 0.06, 0.6  # opacity, so that the number above can be read in light and dark


def heat_chart(table: Table, block: Block, title: str) -> Markup | None:
    """A square a method and site, with its mean; None where nothing is known."""
    known = [cell.mean for row in block.lines for cell in row.cells if cell is not None]
    if not known:
        return None
    left = 12 + LETTER * max(len(row.method) for row in block.lines)
    tilted = LETTER * max(len(site) for site in table.sites)
    top = 10 + 0.62 * tilted + 10
    low, high = min(known), max(known)
    content = [_head(site, left + CELL * (place + 0.35), top - 8) for place, site in enumerate(table.sites)]
    for number, row in enumerate(block.lines):
        y = top + ROW * number
        content.append(text(left - 8, y + ROW / 2 + 4, row.method, "name", "end"))
        for place, cell in enumerate(row.cells):
            share = None if cell is None else _goodness(cell.mean, low, high, block.higher_is_better)
            content += _square(left + CELL * place, y, share, "-" if cell is None else f"{cell.mean:.2f}")
    width = left + CELL * len(table.sites) + 0.8 * tilted * 0.8
    return drawing(title, width, top + ROW * len(block.lines) + 4, *content, natural=True)


def _goodness(value: float, low: float, high: float, higher_is_better: bool) -> float:
    share = (value - low) / (high - low) if high > low else 0.5
    return share if higher_is_better else 1 - share


def _head(site: str, x: float, y: float) -> Markup:
    return tag("text", site, x=px(x), y=px(y), class_="name", transform=f"rotate(-38 {px(x)} {px(y)})")


def _square(x: float, y: float, share: float | None, words: str) -> list[Markup]:
    opacity = 0 if share is None else FAINTEST + share * (STRONGEST - FAINTEST)
    square = tag("rect", x=px(x + 1), y=px(y + 1), width=px(CELL - 2), height=px(ROW - 2), class_="heat",
                 fill_opacity=f"{opacity:.2f}")
    return [square, text(x + CELL / 2, y + ROW / 2 + 4, words, "value", "middle")]
