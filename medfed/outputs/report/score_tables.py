"""The scores of a run by site, and the comparison of methods, as tables of the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from medfed.outputs.report.elements import Cell, Table
from medfed.outputs.report.run_data import ROLES, Comparison, Run
from medfed.outputs.tables import run_table
from medfed.results.notes import did_not_learn
from medfed.results.render import EXPLANATIONS, full_tables
from medfed.tasks.scoring import RUN_TABLE, Scoring

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
    sites = run_table.groups_of(summary, [(role, "{}") for role in ROLES], ())
    means = run_table.groups_of(summary, (), [(role, "mean over sites") for role in ROLES])
    structures = {structure for _, _, structure, _ in sites}
    has_column = scoring.has_structures and len(structures) > 1
    names = ("site", *["role"] * with_role, *["structure"] * has_column)
    head = (*names, *run_table.score_header(scoring, sites), "patients", "images")
    of_structure = f", {min(structures)}" if scoring.has_structures and not has_column and structures else ""
    notes = [f"{note}." for note in (run_table.INTERVAL_NOTE, *scoring.notes_in(RUN_TABLE))]
    body, foot = (
        [
            [
                *(Cell(word) for word in (site, *[ROLE_LABELS[role]] * with_role, *[structure] * has_column)),
                *(Cell(text, _leading_number(text)) for text in run_table.score_cells(scoring, group, sites)),
                *(Cell(text, _leading_number(text)) for text in run_table.counts(group)),
            ]
            for role, site, structure, group in part
        ]
        for part in (sites, means)
    )
    caption = f"{title}{of_structure}{', ' * bool(remark)}{remark}"
    return Table(caption, data_label, head, body, foot, range(len(names)), notes)


def run_failure_table(run: Run) -> Table | None:
    """Calibration error and failures; None for a run that has none of them."""
    rows = run_table.failure_rows(run.scoring, run.summary)
    if not rows:
        return None
    head, *body = rows
    n_sites = len(run_table.groups_of(run.summary, means=()))
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
