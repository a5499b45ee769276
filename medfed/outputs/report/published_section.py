"""The part "As published" of a comparison: the tables that papers printed about its dataset, with our scores."""

from __future__ import annotations

from dataclasses import dataclass

from medfed.outputs.published.beside import beside_comparison, comparison_warnings
from medfed.outputs.published.tables import PublishedTable, tables_of_data
from medfed.outputs.report.elements import Cell, Table
from medfed.results.comparison import Comparison
from medfed.results.notes import data_label


@dataclass(frozen=True)
class Published:
    """The content of the part "As published"; `summary` is shown while it is folded up."""

    summary: str
    warnings: list[str]
    papers: list[tuple[PublishedTable, list[Table]]]


def published_tables(data: object, comparison: Comparison) -> Published | None:
    """The published tables of the dataset of a config's block `data`; None without any."""
    tables = tables_of_data(data)
    if not tables:
        return None
    summary = f"As published: {len(tables)} table{'s' * (len(tables) > 1)} on {tables[0].blocks[0].dataset}"
    papers = [(table, _blocks(table, comparison)) for table in tables]
    return Published(summary, comparison_warnings(comparison), papers)


def _blocks(table: PublishedTable, comparison: Comparison) -> list[Table]:
    label, tables = f"PUBLISHED numbers of the paper; ours: {data_label(comparison.data)}", []
    for block in table.blocks:
        text = beside_comparison(block, comparison)
        head, *body = ([cell.text for cell in row] for row in text.rows)
        cells = [[*map(Cell, row[:2]), *(Cell(text, _number(text)) for text in row[2:])] for row in body]
        caption = f"{table.title}: {text.title}"
        tables.append(Table(caption, label, head, cells, text_columns=(0, 1), notes=block.footnotes))
    return tables


def _number(text: str) -> float | None:
    """The number that a column is sorted by; None for a dash."""
    return None if text == "-" else float(text.partition(" ")[0].rstrip("†"))
