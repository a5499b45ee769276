"""The part "As published" of a comparison: the tables that papers printed about its dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
from medfed.outputs.report.elements import Cell, Table, rows_of_cells
from medfed.outputs.report.run_data import Comparison, Run

LABEL = "PUBLISHED numbers, not of this comparison"


@dataclass(frozen=True)
class PublishedPaper:
    """One table that a paper printed, with sentences about where its numbers are from."""

    title: str
    facts: tuple[str, ...]
    tables: list[Table]


@dataclass(frozen=True)
class Published:
    """The content of the part "As published"; `summary` is shown while it is folded up."""

    summary: str
    warnings: tuple[str, ...]
    papers: list[PublishedPaper]


def published_tables(comparison: Comparison) -> Published | None:
    """Mark the rows that the comparison also has; None if no published table of the dataset is known."""
    first = comparison.runs[0]
    dataset = published_name_of(_config_block(first, "data"))
    tables = tables_of_dataset(dataset)
    if not tables:
        return None
    runs = [
        CompletedRun(
            run.summary["method"], run.row.changes, _config_block(run, "method"), run.summary.get("unseen", {})
        )
        for run in comparison.runs
        if run.is_federated
    ]
    summary = f"As published: {len(tables)} table{'s' if len(tables) > 1 else ''} on {dataset}"
    return Published(summary, comparison_warnings(first.summary["data"]), [_paper(table, runs) for table in tables])


def _paper(table: PublishedTable, runs: list[CompletedRun]) -> PublishedPaper:
    """The published numbers of a table beside the scores of our runs."""
    title, parts = f"{table.paper}, Table {table.table}", []
    for block in table.blocks:
        head, *rows = block_rows(table, block, runs)
        body = [[*row[:2], *(Cell(text, _number(text)) for text in row[2:])] for row in rows]
        parts.append(
            Table(
                f"{title}: {block_title(block)}",
                LABEL,
                head,
                rows_of_cells(body),
                text_columns=(0, 1),
                notes=footnotes(table, block, runs),
            )
        )
    return PublishedPaper(title, table_facts(table), parts)


def _number(text: str) -> float | None:
    """The number that a column is sorted by; None for a dash."""
    return None if text == "-" else float(text.rstrip("†"))


def _config_block(run: Run, name: str) -> Mapping[str, Any]:
    """A block of the run's config; empty if the config has another value there."""
    block = run.config.get(name)
    return block if isinstance(block, Mapping) else {}
