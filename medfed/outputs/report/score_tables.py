"""The scores of a run by site, from its summary, and the comparison of methods, as tables of the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medfed.metrics.metric import Metric
from medfed.outputs.report.blocks import Cell, table_block
from medfed.outputs.report.markup import Markup, lines, tag
from medfed.outputs.report.run_data import ROLES, Comparison, Run
from medfed.outputs.tables import run_table
from medfed.outputs.tables.comparison import Table
from medfed.outputs.tables.table import block_rows, block_title
from medfed.tasks.scoring import RUN_TABLE, Scoring

SHOWN = {"seen": "seen", "validation": "validation", "unseen": "UNSEEN"}


def scores_of_run(run: Run) -> Markup:
    """A line a site (and structure), the means over sites below, and what the columns mean."""
    scoring, summary = run.scoring, run.summary
    head = run_table.header_row(scoring, ("site", "role"))
    body = [
        _line(scoring, site, role, *group)
        for role in ROLES
        for site, of_site in summary.get(role, {}).get("sites", {}).items()
        for group in of_site.items()
    ]
    foot = [
        _line(scoring, "mean over sites", role, *group)
        for role in ROLES
        for group in summary.get(role, {}).get("mean", {}).items()
    ]
    texts = range(2 + scoring.has_structures)
    table = table_block(f"Scores by site: {run.method}, {_rule(run)}", run.data_label, head, body, foot, texts)
    notes = [f"{note}." for note in (scoring.interval_note, *scoring.notes_in(RUN_TABLE))]
    return lines(table, _notes((*notes, *run_table.weights_notes(summary))))


def compared(comparison: Comparison) -> list[Markup]:
    """A table a role, structure and measure: best bold, second underlined, the test against the baseline."""
    label, found = comparison.runs[0].data_label, []
    for role, table in comparison.tables:
        for block in table.blocks:
            head, *body = block_rows(table, block)
            caption = f"Methods on {'sites left out' if role == 'unseen' else 'validation sites'}: {block_title(block)}"
            rows = [[Cell(text, _sorted_by(text), mark) for text, mark in row] for row in body]
            found.append(table_block(f"{caption}; rule '{table.selection}', {_seeds(table)}", label,
                                     [name for name, _ in head], rows))
        found.append(_notes((*_after_the_first(table), *table.notes)))
    return found


def _after_the_first(table: Table) -> tuple[str, ...]:
    """The head of a table without its line on the kind of data, which each caption has."""
    return ("Best of a column bold, second underlined.", *table.head[1:])


def _seeds(table: Table) -> str:
    return f"seed{'s' if len(table.seeds) > 1 else ''} {', '.join(map(str, table.seeds))}"


def _rule(run: Run) -> str:
    found = run.summary
    chosen = f"round {found.get('selected_round')} of {found.get('rounds')}"
    return f"{chosen} by the rule '{found['selection']}', seed {found['seed']}"


def _sorted_by(text: str) -> float | None:
    """The number that a cell begins with; None for a name or a dash."""
    try:
        return float(text.lstrip("<").split(" ")[0].split("/")[0])
    except ValueError:
        return None


def _notes(notes: tuple[str, ...]) -> Markup:
    return tag("ul", *(tag("li", note) for note in notes), class_="notes")


def _line(scoring: Scoring, site: str, role: str, structure: str, group: Mapping[str, Any]) -> list[object]:
    before, after = ([group[key] for key, _ in counts] for counts in (scoring.leading_counts, scoring.trailing_counts))
    scores = [_score(scoring, metric, group) for metric in scoring.metrics_in(RUN_TABLE)]
    return [site, SHOWN[role], *[structure] * scoring.has_structures, *before, *scores, *after]


def _score(scoring: Scoring, metric: Metric, group: Mapping[str, Any]) -> Cell:
    """The mean with its interval, or its spread."""
    column = run_table.displayed_column(scoring, metric, group)
    if column is None:
        return Cell("-")
    return Cell(run_table.format_score(group[column.key], column, with_interval=True), group[column.key]["mean"])
