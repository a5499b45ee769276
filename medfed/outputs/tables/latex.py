"""A comparison as LaTeX: a tabular a block, best bold and second underlined, to paste into a paper (needs booktabs)."""

from __future__ import annotations

from collections.abc import Sequence

from medfed.outputs.tables.comparison import Table
from medfed.outputs.tables.table import MarkedText, block_rows, block_title

SPECIAL = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": r"$<$", ">": r"$>$",
})  # fmt: skip
STYLES = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}", "": "{}"}


def to_latex(table: Table) -> str:
    """What the data are, and how to read the numbers, stands in comments above and in each caption."""
    parts = ["\n".join(f"% {line}" for line in (*table.head, *table.notes))]
    for block in table.blocks:
        head, *lines = block_rows(table, block)
        caption = escape_latex(f"{block_title(block)}. {table.head[0]}")
        parts.append("\n".join([
            r"\begin{table}", rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule",
            _line(head), r"\midrule", *map(_line, lines), r"\bottomrule", r"\end{tabular}", r"\end{table}",
        ]))  # fmt: skip
    return "\n\n".join(parts) + "\n"


def escape_latex(text: str) -> str:
    """Text in which LaTeX finds no command."""
    return text.translate(SPECIAL)


def _line(words: Sequence[MarkedText]) -> str:
    return " & ".join(STYLES[mark].format(escape_latex(text)) for text, mark in words) + r" \\"
