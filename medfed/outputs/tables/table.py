"""Format the leave-one-site-out table as Markdown, text, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict

from medfed.outputs.tables.comparison import PHANTOM, Block, Cell, Table
from medfed.tasks.scoring import ALL

TRANSDUCTIVE = {
    "tent": "the network was adapted to each site's test images (Tent), without their labels",
    "batch_stats": "at sites that did not train, BatchNorm used the statistics of each batch of test images",
    "nearest": "sites that did not train used the source site's BatchNorm that is nearest to their unlabelled test "
    "images",
}
MarkedText = tuple[str, str]  # (text of a cell, mark); the mark is "best", "second" or ""


def to_markdown(table: Table) -> str:
    """Format a comparison table as Markdown. The best method of a column is bold, the second best is underlined.

    Args:
        table: the table, from `build_table`.
    """
    styles = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}
    parts = ["  \n".join(f"**{line}**" if line == PHANTOM else line for line in table.head)]
    for block in table.blocks:
        head, *lines = block_rows(table, block)
        written = [[styles[mark].format(text.replace("|", "\\|")) for text, mark in line] for line in (head, *lines)]
        written.insert(1, ["---", *["---:"] * (len(head) - 1)])
        parts.append(f"### {block_title(block)}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in written))
    parts.append("\n".join(f"- {note}" for note in table.notes))
    return "\n\n".join(filter(None, parts)) + "\n"


def to_text(table: Table, isatty: bool = False) -> str:
    """Format a comparison table as text with aligned columns.

    Args:
        table: the table, from `build_table`.
        isatty: True prints the best method of each column in bold and underlines the second best, with the terminal's
            escape codes. False marks nothing.
    """
    parts = ["\n".join(table.head)]
    parts += [f"{block_title(block)}\n{align_columns(block_rows(table, block), isatty)}" for block in table.blocks]
    parts.append("\n".join(f"note: {note}" for note in table.notes))
    return "\n\n".join(filter(None, parts))


def to_csv(table: Table, role: str = "unseen") -> str:
    """Format a comparison table as CSV with one line for each structure, metric, method and site.

    After the lines of the sites, each method has one more line, in which the site is "average". This line has the
    average over sites, the p value, the number of patients in the significance test, the number of failures, and the
    number of cases. For masks, a failure is a missed structure: the predicted mask is empty although the true mask is
    not. For classification, it is a misclassified image. Unknown values are empty fields.

    Args:
        table: the table, from `build_table`.
        role: whether the sites of the table are "unseen" or "validation" sites, as given to `build_table`.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = f"data selection structure metric unit method {role}_site mean sd n_seeds p n_pairs n_missed n_cases"
    writer.writerow(columns.split())
    for block in table.blocks:
        for line in block.lines:
            for site, cell in zip((*table.sites, "average"), (*line.cells, line.average)):
                last = (line.p, line.n, line.n_missed, line.n_cases) if site == "average" else (None,) * 4
                scores = (cell.mean, cell.sd, cell.n_seeds) if cell else (None,) * 3
                facts = (table.data, table.selection, block.structure, block.metric, block.unit, line.method, site)
                values = (*facts, *scores, *last)
                writer.writerow([f"{value:.6f}" if isinstance(value, float) else value for value in values])
    return text.getvalue()


def to_json_dict(table: Table) -> dict:
    """Convert a comparison table to plain dicts and lists, with the same names as the fields of `Table`.

    Unknown values are None. Metrics with the unit "%", such as Dice, are in percent (0 to 100).

    Args:
        table: the table, from `build_table`.
    """
    return json.loads(json.dumps(asdict(table), allow_nan=False))


def to_json(table: Table) -> str:
    """Format a comparison table as JSON text, with the same names as the fields of `Table`.

    Args:
        table: the table, from `build_table`.
    """
    return json.dumps(to_json_dict(table), indent=2, ensure_ascii=False) + "\n"


def block_title(block: Block) -> str:
    """Return the title of one block of a comparison table, for example "prostate: Dice (%), higher is better".

    Args:
        block: the part of a comparison table for one structure and one metric in one unit.
    """
    better = "higher" if block.higher_is_better else "lower"
    name = block.name if block.structure == ALL else f"{block.structure}: {block.name}"
    unit = f" ({block.unit})" if block.unit else ""
    return f"{name}{unit}, {better} is better"


def block_rows(table: Table, block: Block) -> list[list[MarkedText]]:
    """Format one block of a comparison table as rows of text: a header row, then one row for each method.

    The columns are the method, one column per site, the average over sites, the p value of a paired significance test
    against the baseline method, and the number of failures out of all cases, such as "3/40". For masks, a failure is a
    missed structure: the predicted mask is empty although the true mask is not. For classification, it is a
    misclassified image. The column of p values is left out if no significance test was made.

    Args:
        table: the comparison table that contains the block.
        block: the part of the table for one structure and one metric in one unit.

    Returns:
        Rows of (text, mark) pairs, one pair per column. The mark is "best" for the best score of a column, "second" for
        the second best, and "" for all other texts.
    """
    head = ["method", *table.sites, "average", f"p against {table.baseline} (n)", table.failed]
    tested = any(line.n is not None for line in block.lines)
    columns = list(zip(*[(*line.cells, line.average) for line in block.lines]))
    marks = zip(*[_marked(column, block) for column in columns])
    lines = []
    for line, marked in zip(block.lines, marks):
        test = "" if line.n is None else f"{_p(line.p)} ({line.n})"
        lines.append([(line.method, ""), *marked, (test, ""), (f"{line.n_missed}/{line.n_cases}", "")])
    table_of = [[(name, "") for name in head], *lines]
    return table_of if tested else [[*line[:-2], line[-1]] for line in table_of]


def _marked(column: Sequence[Cell | None], block: Block) -> list[MarkedText]:
    """Format a column and mark the best and the second best value.

    Values are compared as printed, so equal texts have equal marks. A single value has no mark.
    """
    printed = [None if cell is None else round(cell.mean, block.decimals) for cell in column]
    ranked = sorted({value for value in printed if value is not None}, reverse=block.higher_is_better)
    marks = dict(zip(ranked, ("best", "second"))) if len(column) - printed.count(None) > 1 else {}
    return [
        (_printed(cell, block.decimals), "" if value is None else marks.get(value, ""))
        for cell, value in zip(column, printed)
    ]


def _printed(cell: Cell | None, decimals: int) -> str:
    """Format mean and standard deviation; "-" if unknown."""
    if cell is None:
        return "-"
    return f"{cell.mean:.{decimals}f}" + (f" ± {cell.sd:.{decimals}f}" if cell.sd is not None else "")


def _p(p: float | None) -> str:
    """Format a p value; "-" if there is none."""
    if p is None:
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def align_columns(lines: Sequence[Sequence[MarkedText]], ansi: bool, n_left: int = 1) -> str:
    """Format rows as text in which every column is as wide as its longest cell.

    Args:
        lines: rows of (text, mark) of equal length. The mark is "best", "second" or "".
        ansi: True prints cells marked "best" in bold and underlines cells marked "second", with the terminal's escape
            codes. False ignores the marks.
        n_left: the first `n_left` columns are aligned to the left, and all following columns to the right.
    """
    widths = [max(len(text) for text, _ in column) for column in zip(*lines)]
    codes = {"best": "\033[1m{}\033[0m", "second": "\033[4m{}\033[0m"} if ansi else {}
    written = []
    for line in lines:
        padded = []
        for index, ((text, mark), width) in enumerate(zip(line, widths)):
            pad = " " * (width - len(text))
            styled = codes.get(mark, "{}").format(text)
            padded.append(styled + pad if index < n_left else pad + styled)
        written.append("  ".join(padded).rstrip())
    return "\n".join(["  " + text for text in written])
