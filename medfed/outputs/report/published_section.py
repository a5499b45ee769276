"""The part "As published" of a comparison: the papers' own tables of its data set, folded up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medfed.outputs.published.section import (
    CompletedRun,
    block_rows,
    block_title,
    comparison_warnings,
    footnotes,
    published_name_of,
    table_facts,
    tables_of_dataset,
)
from medfed.outputs.published.tables import PublishedTable
from medfed.outputs.report import markup
from medfed.outputs.report.blocks import Cell, table_block
from medfed.outputs.report.markup import Markup, tag
from medfed.outputs.report.run_data import Comparison, Run

LABEL = "PUBLISHED numbers, not of this comparison"


def section(found: Comparison) -> list[Markup]:
    """One folded block, or none where no published table is known to be of the data."""
    dataset = published_name_of(_block(found.runs[0], "data"))
    tables = tables_of_dataset(dataset)
    if not tables:
        return []
    ran = [CompletedRun(run.summary["method"], run.row.changes, _block(run, "method")) for run in found.runs]
    said = [tag("p", sentence, class_="warning") for sentence in comparison_warnings(found.runs[0].summary["data"])]
    count = f"{len(tables)} table{'s' if len(tables) > 1 else ''}"
    summary = tag("summary", f"As published: {count} on {dataset}")
    return [tag("details", summary, "\n", markup.lines(*said, *(_table(table, ran) for table in tables)))]


def _table(table: PublishedTable, ran: list[CompletedRun]) -> Markup:
    parts = [tag("h4", f"{table.paper}, Table {table.table}"), _notes(table_facts(table))]
    for block in table.blocks:
        head, *rows = block_rows(table, block, ran)
        body = [[*row[:2], *(Cell(text, _value(text)) for text in row[2:])] for row in rows]
        caption = f"{table.paper}, Table {table.table}: {block_title(block)}"
        parts.append(table_block(caption, LABEL, head, body, texts=(0, 1)))
        parts.append(_notes(footnotes(table, block)))
    return markup.lines(*parts)


def _notes(notes: tuple[str, ...]) -> Markup | None:
    return tag("ul", *(tag("li", note) for note in notes), class_="notes") if notes else None


def _value(text: str) -> float | None:
    """What a column is sorted by."""
    return None if text == "-" else float(text.rstrip("†"))


def _block(run: Run, name: str) -> Mapping[str, Any]:
    """A block of the run's config; empty where a page's reader has an odd one."""
    found = run.config.get(name)
    return found if isinstance(found, Mapping) else {}
