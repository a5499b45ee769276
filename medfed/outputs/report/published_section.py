"""The part "As published" of a comparison: the tables that papers printed about its data set."""

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
    """One table that a paper printed, as content of the report.

    Attributes:
        title: the paper and the number of the table.
        facts: sentences about where the numbers are from.
        tables: the parts of the table that are about the dataset of the comparison.
    """

    title: str
    facts: tuple[str, ...]
    tables: list[Table]


@dataclass(frozen=True)
class Published:
    """The content of a comparison's part "As published" in the report.

    Attributes:
        summary: the line that is shown while the part is folded up.
        warnings: why the numbers must not be ranked together.
        papers: the tables.
    """

    summary: str
    warnings: tuple[str, ...]
    papers: list[PublishedPaper]


def published_tables(comparison: Comparison) -> Published | None:
    """Return the tables that papers published about the dataset of a comparison, as content of the report.

    A published row is marked if the comparison has a run with the same method and settings.

    Args:
        comparison: the runs that are compared, at least one.

    Returns:
        Texts and tables; None if no published table of the dataset is known.
    """
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
    """Return the number that a column is sorted by; None for a dash."""
    return None if text == "-" else float(text.rstrip("†"))


def _config_block(run: Run, name: str) -> Mapping[str, Any]:
    """Return a block of the run's config; an empty one if the config has another value there."""
    block = run.config.get(name)
    return block if isinstance(block, Mapping) else {}
