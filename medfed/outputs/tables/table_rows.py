"""Format a comparison table as rows of text, which Markdown, LaTeX, the terminal and the report page show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from medfed.metrics.failures import LOW_DICE, Share
from medfed.outputs.tables.comparison_data import Block, Cell, Difference, Line, Table
from medfed.outputs.tables.comparison_notes import difference_text
from medfed.outputs.tables.comparison_row import is_compared, is_federated
from medfed.tasks.scoring import ALL


class MarkedText(NamedTuple):
    """A cell of a table as text; `mark` is "best", "second" or "", `more` is an interval behind or below the text, or
    ""."""

    text: str
    mark: str = ""
    more: str = ""


def block_title(block: Block) -> str:
    """For example "prostate: Dice (%), higher is better"."""
    better = "higher" if block.higher_is_better else "lower"
    name = block.name if block.structure == ALL else f"{block.structure}: {block.name}"
    unit = f" ({block.unit})" if block.unit else ""
    return f"{name}{unit}, {better} is better"


def titled_tables(table: Table) -> list[tuple[str, list[list[MarkedText]]]]:
    """(title, rows with the header first) of each table: scores and differences of each block, then the failures."""
    return [*(rows for block in table.blocks for rows in titled_rows(table, block)), *failure_tables(table)]


def titled_rows(table: Table, block: Block) -> list[tuple[str, list[list[MarkedText]]]]:
    """The scores of a block and, if a method is compared, the differences, as (title, rows with the header first)."""
    tables = [(block_title(block), block_rows(table, block))]
    if any(line.difference or any(line.differences) or line.from_baseline for line in block.lines):
        name = block.name if block.structure == ALL else f"{block.structure}: {block.name}"
        unit = {"%": " (points)", "": ""}.get(block.unit, f" ({block.unit})")
        equal = " of equal effort" if any(line.from_baseline for line in block.lines) else ""
        tables.append((f"{name}{unit}, difference from {table.baseline}{equal}", difference_rows(table, block)))
    return tables


def failure_tables(table: Table) -> list[tuple[str, list[list[MarkedText]]]]:
    """The failures as (title, rows with the header first), one table for each structure; empty for a task without
    masks."""
    tables = []
    for structure in dict.fromkeys(block.structure for block in table.failures):
        of_structure = [block for block in table.failures if block.structure == structure]
        low = next(block for block in of_structure if block.kind == LOW_DICE)
        others = [block for block in of_structure if block is not low and any(line.total for line in block.lines)]
        several = len(table.sites) > 1
        head = ["method", *table.sites, *["all sites"] * several, *(block.title for block in others)]
        rows = [list(map(MarkedText, head))]
        for place, line in enumerate(low.lines):
            shares = (*line.sites, *[line.total] * several, *(block.lines[place].total for block in others))
            rows.append([MarkedText(_displayed_name(line.method)), *map(_share_text, shares)])
        tables.append((f"{structure}: patients with {low.title}", rows))
    return tables


def block_rows(table: Table, block: Block) -> list[list[MarkedText]]:
    """The scores of a block: a header row, then one row for each method, references last, then the trivial prediction.
    Failures are shown as "3/40" (`Line.n_missed`); references have no marks."""
    several, has_rank = len(table.sites) > 1, any(line.rank for line in block.lines)
    head = ["method", *table.sites, *["average", "worst site"] * several, *["rank"] * has_rank, table.failed]
    columns = list(zip(*[(*line.cells, *[line.average] * several) for line in block.lines]))
    competes = [is_compared(line.method) or line.method == table.baseline for line in block.lines]
    marks = zip(*[_marked(column, block, competes) for column in columns])
    lines = []
    for line, marked in zip(block.lines, marks):
        more = [_worst_text(table, block, line)] * several + [_rank_text(line)] * has_rank
        failed = MarkedText(f"{line.n_missed}/{line.n_cases}")
        lines.append([MarkedText(_displayed_name(line.method)), *marked, *more, failed])
    if block.trivial:
        cells = [*block.trivial.cells, *[block.trivial.average] * several]
        lines.append(
            [
                MarkedText(block.trivial.method),
                *(MarkedText(_printed(cell, block.decimals)) for cell in cells),
                *[MarkedText("")] * (len(head) - 1 - len(cells)),
            ]
        )
    return [list(map(MarkedText, head)), *lines]


def difference_rows(table: Table, block: Block) -> list[list[MarkedText]]:
    """The differences of a block: a header row, then one row for each compared method."""
    several = len(table.sites) > 1
    has_effort = any(line.from_baseline for line in block.lines)
    effort = [f"from {table.baseline}, less effort", "compared with"] * has_effort
    head = ["method", *effort, *table.sites, *["average"] * several, "over seeds", "p (n)", "verdict", "detectable"]
    rows = [list(map(MarkedText, head))]
    for line in block.lines:
        if not line.differences and not line.from_baseline:
            continue
        d = line.difference
        of_sites = line.differences or (None,) * len(table.sites)
        differences = [_difference_text(difference, block) for difference in (*of_sites, *[d] * several)]
        p = "-" if d is None or d.n is None else f"{_p(d.p_holm)} ({d.n})"
        detectable = "-" if d is None or d.detectable is None else f"{d.detectable:.{block.decimals}f}"
        seeds = (
            "-"
            if d is None or d.seeds_low is None
            else (f"[{d.seeds_low:+.{block.decimals}f}, {d.seeds_high:+.{block.decimals}f}] ({len(d.of_seeds)})")
        )
        texts = (seeds, p, d.verdict_text if d else "-", detectable)
        other = [_difference_text(line.from_baseline, block), MarkedText(line.against or "-")] * has_effort
        rows.append([MarkedText(line.method), *other, *differences, *map(MarkedText, texts)])
    return rows


def _displayed_name(method: str) -> str:
    """The label of a row, with a remark if the row is not federated."""
    return method if is_federated(method) else f"{method} (not federated)"


def _marked(column: Sequence[Cell | None], block: Block, competes: Sequence[bool]) -> list[MarkedText]:
    """Format a column and mark its best and second best value among the lines that compete; equal texts have equal
    marks."""
    printed = [
        round(cell.mean, block.decimals) if cell and competing else None
        for cell, competing in zip(column, competes, strict=True)
    ]
    ranked = sorted({value for value in printed if value is not None}, reverse=block.higher_is_better)
    marks = dict(zip(ranked, ("best", "second"))) if len(column) - printed.count(None) > 1 else {}
    texts = [(_printed(cell, block.decimals), _interval(cell, block)) for cell in column]
    return [
        MarkedText(text, "" if value is None else marks.get(value, ""), more)
        for (text, more), value in zip(texts, printed, strict=True)
    ]


def _printed(cell: Cell | None, decimals: int) -> str:
    """Mean and standard deviation; "-" if unknown."""
    if cell is None:
        return "-"
    return f"{cell.mean:.{decimals}f}" + (f" ± {cell.sd:.{decimals}f}" if cell.sd is not None else "")


def _interval(cell: Cell | None, block: Block) -> str:
    """An interval with one decimal less than the score; "" without an interval."""
    if cell is None or cell.low is None:
        return ""
    n = max(0, block.decimals - 1)
    return f"[{cell.low:.{n}f}, {cell.high:.{n}f}]"


def _worst_text(table: Table, block: Block, line: Line) -> MarkedText:
    """The score at the worst site, with the site's name."""
    if line.worst_site is None:
        return MarkedText("-")
    cell = line.cells[table.sites.index(line.worst_site)]
    assert cell is not None
    return MarkedText(f"{cell.mean:.{block.decimals}f} ({line.worst_site})")


def _rank_text(line: Line) -> MarkedText:
    """A rank, its range and the share of the samples in which it is 1, for example "2 [1, 3] first: 12 %"."""
    if line.rank is None:
        return MarkedText("-")
    rank = line.rank
    return MarkedText(str(rank.rank), "", f"[{rank.low}, {rank.high}] first: {100 * rank.first_share:.0f} %")


def _difference_text(difference: Difference | None, block: Block) -> MarkedText:
    """A difference with its sign and its interval; "-" if unknown."""
    if difference is None:
        return MarkedText("-")
    text, _, more = difference_text(difference, block.decimals).partition(" ")
    return MarkedText(text, "", more)


def _p(p: float | None) -> str:
    """A p-value as text; "-" for None."""
    if p is None:
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _share_text(share: Share | None) -> MarkedText:
    return MarkedText("-") if share is None else MarkedText(share.text, "", share.interval_text)
