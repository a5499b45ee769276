"""Printing the leave-one-site-out table: Markdown, text, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict

from medfed.outputs.tables.comparison import PHANTOM, Block, Cell, Table
from medfed.tasks.scoring import ALL

TRANSDUCTIVE = {
    "tent": "the network adapted to each site's test images (Tent), without their labels",
    "batch_stats": "at sites that took no part BatchNorm used the statistics of each batch of test images",
    "nearest": "in a weak sense, sites that took no part got the BatchNorm nearest to their unlabelled test images",
}
MarkedText = tuple[str, str]  # a cell's text; "best", "second" or ""


def to_markdown(table: Table) -> str:
    """Best of a column bold, second underlined."""
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
    """Aligned for the terminal; with bold and underline if that is what it is written to."""
    parts = ["\n".join(table.head)]
    parts += [f"{block_title(block)}\n{align_columns(block_rows(table, block), isatty)}" for block in table.blocks]
    parts.append("\n".join(f"note: {note}" for note in table.notes))
    return "\n\n".join(filter(None, parts))


def to_csv(table: Table, role: str = "unseen") -> str:
    """One value a line, each with what it is; unknown is empty. `role` as `build_table` had it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = f"data selection structure metric unit method {role}_site mean sd n_seeds p n_pairs n_missed n_cases"
    writer.writerow(columns.split())
    for block in table.blocks:
        for line in block.lines:
            for site, cell in zip((*table.sites, "average"), (*line.cells, line.average)):
                last = (line.p, line.n, line.n_missed, line.n_cases) if site == "average" else (None,) * 4
                found = (cell.mean, cell.sd, cell.n_seeds) if cell else (None,) * 3
                facts = (table.data, table.selection, block.structure, block.metric, block.unit, line.method, site)
                values = (*facts, *found, *last)
                writer.writerow([f"{value:.6f}" if isinstance(value, float) else value for value in values])
    return text.getvalue()


def to_json_dict(table: Table) -> dict:
    """The table as plain dicts and lists, None where unknown; Dice in %."""
    return json.loads(json.dumps(asdict(table), allow_nan=False))


def to_json(table: Table) -> str:
    """`to_json_dict` as text."""
    return json.dumps(to_json_dict(table), indent=2, ensure_ascii=False) + "\n"


def block_title(block: Block) -> str:
    better = "higher" if block.higher_is_better else "lower"
    name = block.name if block.structure == ALL else f"{block.structure}: {block.name}"
    unit = f" ({block.unit})" if block.unit else ""
    return f"{name}{unit}, {better} is better"


def block_rows(table: Table, block: Block) -> list[list[MarkedText]]:
    """Head and lines as texts with marks."""
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
    """Best and second by the value as printed, so that equal print shares a mark; nothing to mark for one method."""
    printed = [None if cell is None else round(cell.mean, block.decimals) for cell in column]
    ranked = sorted({value for value in printed if value is not None}, reverse=block.higher_is_better)
    marks = dict(zip(ranked, ("best", "second"))) if len(column) - printed.count(None) > 1 else {}
    return [
        (_printed(cell, block.decimals), "" if value is None else marks.get(value, ""))
        for cell, value in zip(column, printed)
    ]


def _printed(cell: Cell | None, decimals: int) -> str:
    if cell is None:
        return "-"
    return f"{cell.mean:.{decimals}f}" + (f" ± {cell.sd:.{decimals}f}" if cell.sd is not None else "")


def _p(p: float | None) -> str:
    if p is None:
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def align_columns(lines: Sequence[Sequence[MarkedText]], ansi: bool, n_left: int = 1) -> str:
    """Columns padded to their widest text; the first `n_left` to the left, numbers to the right."""
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
