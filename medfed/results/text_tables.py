"""Tables of text, and their form in a terminal, in Markdown and in LaTeX (with the packages booktabs and graphicx)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from medfed.metrics.metric import Metric

SPECIAL = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{character: rf"\{character}" for character in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "<": r"$<$",
        ">": r"$>$",
    }
)
SCALED = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%"


class Cell(NamedTuple):
    """`mark` is "best", "second" or ""."""

    text: str
    mark: str = ""


class TextTable(NamedTuple):
    """A table with its header first; `n_words` columns of words come first, and `n_foot` rows sum up the others."""

    title: str
    rows: list[list[Cell]]
    n_words: int = 1
    n_foot: int = 0


def text_table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str | Cell]], n_words: int = 1, n_foot: int = 0
) -> TextTable:
    """A table of texts and cells."""
    every = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in (head, *rows)]
    every = [[Cell(" ".join(cell.text.split()), cell.mark) for cell in row] for row in every]
    return TextTable(" ".join(title.split()), every, n_words, n_foot)


def aligned(rows: Sequence[Sequence[str]], n_words: int = 1) -> str:
    """Rows of text, with the header first, as aligned columns."""
    return to_terminal(text_table("", rows[0], rows[1:], n_words))


def number(value: float | None, decimals: int = 2, sign: str = "") -> str:
    """A number, or "-" if it is unknown."""
    return "-" if value is None or math.isnan(value) else f"{value:{sign}.{decimals}f}"


def interval(low: float, high: float, decimals: int = 1) -> str:
    """An interval after a number, with a space before it; "" if it is unknown."""
    return "" if math.isnan(low) else f" [{low:.{decimals}f}, {high:.{decimals}f}]"


def score_text(line: Any, metric: Metric, unit: str = "") -> str:
    """The mean of a line of a table of scores with the deviation over seeds and the interval, if they are known."""
    if line is None:
        return "-"
    sd, digits = getattr(line, "sd", math.nan), metric.decimals
    spread = "" if math.isnan(sd) else f" ± {sd:.{digits}f}"
    return number(line.mean, digits) + unit + spread + interval(line.low, line.high, max(0, digits - 1))


def difference_text(line: Any, metric: Metric) -> str:
    if line is None:
        return "-"
    return number(line.difference, metric.decimals, "+") + interval(line.low, line.high, metric.decimals)


def with_marks(cells: Sequence[str], values: Sequence[float], competing: Sequence[bool], metric: Metric) -> list[Cell]:
    """Mark the best and the second best value of a column among the competing ones; equal texts have equal marks."""
    known = {value for value, own in zip(values, competing) if own and not math.isnan(value)}
    ranked = sorted(known, reverse=metric.higher_is_better)[:2] if sum(competing) > 1 else []
    names = dict(zip(ranked, ("best", "second")))
    return [Cell(text, names.get(value, "") if own else "") for text, value, own in zip(cells, values, competing)]


def to_terminal(table: TextTable, colours: bool = False) -> str:
    """Aligned columns; with `colours`, the best value of a column is bold and the second underlined."""
    codes = {"best": "\033[1m{}\033[0m", "second": "\033[4m{}\033[0m"} if colours else {}
    widths = [max(len(cell.text) for cell in column) for column in zip(*table.rows)]
    lines = []
    for row in table.rows:
        padded = []
        for place, (cell, width) in enumerate(zip(row, widths)):
            pad, text = " " * (width - len(cell.text)), codes.get(cell.mark, "{}").format(cell.text)
            padded.append(text + pad if place < table.n_words else pad + text)
        lines.append("  " + "  ".join(padded).rstrip())
    return "\n".join([table.title] * bool(table.title) + lines)


def to_markdown(table: TextTable, level: int = 3) -> str:
    styles = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}
    head, *rows = [[styles[cell.mark].format(escape_markdown(cell.text)) for cell in row] for row in table.rows]
    rule = ["---"] * table.n_words + ["---:"] * (len(head) - table.n_words)
    title = [f"{'#' * level} {table.title}", ""] if table.title else []
    return "\n".join([*title, *(f"| {' | '.join(row)} |" for row in (head, rule, *rows))])


def to_latex(table: TextTable, note: str = "") -> str:
    """A table that is scaled to the width of the text if it is wider; `note` ends the caption."""
    styles = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}", "": "{}"}
    head, *lines = (
        " & ".join(styles[cell.mark].format(escape_latex(cell.text)) for cell in row) + r" \\" for row in table.rows
    )
    columns = "l" * table.n_words + "r" * (len(table.rows[0]) - table.n_words)
    caption = escape_latex(". ".join(filter(None, (table.title, note))))
    begin = [r"\begin{table}", rf"\caption{{{caption}}}", SCALED, rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head]
    return "\n".join([*begin, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}}", r"\end{table}"])


def escape_markdown(text: str) -> str:
    return re.sub(r"[|*`<\\]", r"\\\g<0>", text)


def escape_latex(text: str) -> str:
    return text.translate(SPECIAL)


def bullets(lines: Sequence[str]) -> str:
    """A Markdown list."""
    return "\n".join(f"- {line}" for line in lines)
