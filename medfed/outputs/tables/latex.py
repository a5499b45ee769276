"""Format a comparison table as LaTeX for a paper that uses the package booktabs."""

from __future__ import annotations

from collections.abc import Sequence

from medfed.outputs.tables.comparison_data import Table
from medfed.outputs.tables.table_rows import MarkedText, titled_tables

SPECIAL = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "<": r"$<$",
        ">": r"$>$",
    }
)
STYLES = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}", "": "{}"}


def to_latex(table: Table) -> str:
    """The scores and the differences as LaTeX tables; the best method of a column is bold, the second best underlined.
    Conclusions and notes are comments above the first table."""
    parts = ["\n".join(f"% {line}" for line in (*table.head, *table.conclusions, *table.notes))]
    for title, (head, *lines) in titled_tables(table):
        caption = escape_latex(f"{title}. {table.head[0]}")
        parts.append(
            "\n".join(
                [
                    r"\begin{table}",
                    rf"\caption{{{caption}}}",
                    rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
                    r"\toprule",
                    _line(head),
                    r"\midrule",
                    *map(_line, lines),
                    r"\bottomrule",
                    r"\end{tabular}",
                    r"\end{table}",
                ]
            )
        )
    return "\n\n".join(parts) + "\n"


def escape_latex(text: str) -> str:
    return text.translate(SPECIAL)


def _line(cells: Sequence[MarkedText]) -> str:
    styled = [STYLES[cell.mark].format(escape_latex(cell.text)) for cell in cells]
    texts = [text + escape_latex(f" {cell.more}".rstrip()) for text, cell in zip(styled, cells, strict=True)]
    return " & ".join(texts) + r" \\"
