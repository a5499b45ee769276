"""The scores of a run by site, and the comparison of methods, as tables of the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from medfed.metrics.metric import Metric
from medfed.outputs.report.elements import Cell, Table, rows_of_cells
from medfed.outputs.report.run_data import ROLES, Comparison, Run
from medfed.outputs.tables import run_table
from medfed.results.notes import did_not_learn
from medfed.results.render import EXPLANATIONS, full_tables
from medfed.tasks.scoring import LEADING_COUNTS, RUN_TABLE, Scoring

ROLE_LABELS = {"seen": "seen", "validation": "validation", "unseen": "UNSEEN"}


def run_score_table(run: Run) -> Table:
    notes = [f"{note}." for note in [did_not_learn(run.summary)] if note]
    table = site_score_table(
        run.scoring, run.summary, run.data_label, f"Scores by site: {run.method}", _selection(run.summary)
    )
    return replace(table, notes=(*notes, *table.notes, *run_table.weights_notes(run.summary)))


def site_score_table(
    scoring: Scoring, summary: Mapping[str, Any], data_label: str, title: str, remark: str = "", with_role: bool = True
) -> Table:
    """One row per site and structure, and below them the means over sites. Scores come before numbers of cases, so that
    a phone shows them without scrolling. `title` begins and `remark` ends the caption."""
    sites = [
        (site, role, structure, group)
        for role in ROLES
        for site, structures in summary.get(role, {}).get("sites", {}).items()
        for structure, group in structures.items()
    ]
    means = [
        ("mean over sites", role, structure, group)
        for role in ROLES
        for structure, group in summary.get(role, {}).get("mean", {}).items()
    ]
    structures = {structure for _, _, structure, _ in sites}
    has_column = scoring.has_structures and len(structures) > 1
    names = ("site", *["role"] * with_role, *["structure"] * has_column)
    metrics = run_table.header_row(scoring, ())[scoring.has_structures + len(LEADING_COUNTS) :]
    n_metrics = len(scoring.metrics_in(RUN_TABLE))
    counts = [heading for _, heading in (*LEADING_COUNTS, *scoring.trailing_counts)]
    of_structure = f", {min(structures)}" if scoring.has_structures and not has_column and structures else ""
    notes = [f"{note}." for note in (run_table.interval_note(scoring, summary), *scoring.notes_in(RUN_TABLE))]
    body, foot = (
        [_row(scoring, *entry, with_structure=has_column, with_role=with_role) for entry in part]
        for part in (sites, means)
    )
    return Table(
        f"{title}{of_structure}{', ' * bool(remark)}{remark}",
        data_label,
        (*names, *metrics[:n_metrics], *counts),
        body,
        foot,
        range(len(names)),
        notes,
    )


def run_failure_table(run: Run) -> Table | None:
    """Calibration error and failures; None for a run that has none of them."""
    rows = run_table.failure_rows(run.scoring, run.summary)
    if not rows:
        return None
    head, *body = rows
    n_sites = sum(
        len(structures) for role in ROLES for structures in run.summary.get(role, {}).get("sites", {}).values()
    )
    cells = [[Cell(text, _leading_number(text)) for text in row] for row in body]
    return Table(
        f"Calibration and failures by site: {run.method}",
        run.data_label,
        head,
        cells[:n_sites],
        cells[n_sites:],
        range(2),
        [f"{note}." for note in run_table.failure_notes(run.scoring, run.summary)],
    )


def comparison_tables_of(comparison: Comparison) -> list[Table]:
    """Scores, differences, failures and joining, with methods as rows."""
    assert comparison.table
    label = comparison.runs[0].data_label
    tables = [
        Table(
            table.title,
            label,
            [cell.text for cell in table.rows[0]],
            [[Cell(cell.text, _leading_number(cell.text), cell.mark) for cell in row] for row in table.rows[1:]],
        )
        for table in full_tables(comparison.table)
    ]
    return [*tables[:-1], replace(tables[-1], notes=EXPLANATIONS)]


def _selection(summary: Mapping[str, Any]) -> str:
    """Such as "round 40 of 50 by the rule 'last', seed 0"."""
    chosen = f"round {summary.get('selected_round')} of {summary.get('rounds')}"
    return f"{chosen} by the rule '{summary['selection']}', seed {summary['seed']}"


def _leading_number(text: str) -> float | None:
    """The number at the beginning of a cell's text, by which the column is sorted; None for a name or a dash."""
    try:
        return float(text.lstrip("<").split(" ")[0].split("/")[0].rstrip("*"))
    except ValueError:
        return None


def _row(
    scoring: Scoring,
    site: str,
    role: str,
    structure: str,
    group: Mapping[str, Any],
    *,
    with_structure: bool,
    with_role: bool,
) -> list[Cell]:
    """The cells of one site and structure: names, scores, then numbers of cases."""
    counts = [group[key] for key, _ in (*LEADING_COUNTS, *scoring.trailing_counts)]
    scores = [_score(scoring, metric, group) for metric in scoring.metrics_in(RUN_TABLE)]
    (cells,) = rows_of_cells(
        [[site, *[ROLE_LABELS[role]] * with_role, *[structure] * with_structure, *scores, *counts]]
    )
    return cells


def _score(scoring: Scoring, metric: Metric, group: Mapping[str, Any]) -> Cell:
    """The mean with its interval or its spread."""
    column = run_table.displayed_column(scoring, metric, group)
    if column is None:
        return Cell("-")
    return Cell(run_table.format_score(group[column.key], column), group[column.key]["mean"])
