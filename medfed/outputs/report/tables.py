"""The tables of the page about one run: scores by site, failures, patients and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from medfed.metrics.mask_metric import ABSENT, OK
from medfed.outputs.report.html import EmbeddedFigure, embed
from medfed.outputs.report.read import Run
from medfed.outputs.run_folder import FIGURES
from medfed.outputs.tables import run_table
from medfed.outputs.tables.cost import NOTE, cost_rows, costs_by_row
from medfed.results.scores import patient_values, predictions
from medfed.results.text_tables import TextTable, number, text_table
from medfed.tasks.scoring import CASES, RUN_TABLE, Scoring

ROLES = {"unseen": "UNSEEN", "validation": "validation", "seen": "seen"}
MAX_PATIENTS = 500  # rows of a run's table of patients
PATIENT = ["role", "site", "patient"]


class PageTable(NamedTuple):
    """A table with its notes; a click on a heading sorts all rows but the last `n_foot`."""

    table: TextTable
    notes: Sequence[str] = ()
    n_foot: int = 0


class PatientTable(NamedTuple):
    """The table of patients; a row begins with the overlay of its patient, None if there is none."""

    head: Sequence[str]
    rows: Sequence[tuple[EmbeddedFigure | None, Sequence[str]]]
    n_words: int
    note: str = ""


def site_table(scoring: Scoring, summary: Mapping[str, Any], with_role: bool = True) -> PageTable:
    """The scores by site and structure, and below them the means over sites; scores come before numbers of images, so
    that a phone shows them without scrolling."""
    sites = run_table.groups_of(summary, [(role, "{}") for role in ROLES], ())
    means = run_table.groups_of(summary, (), [(role, "mean over sites") for role in ROLES])
    has_structures = scoring.has_structures
    rows = [
        [
            site,
            *[ROLES[role]] * with_role,
            *[structure] * has_structures,
            *run_table.score_cells(scoring, group, sites),
            *run_table.counts(group),
        ]
        for role, site, structure, group in (*sites, *means)
    ]
    names = ("site", *["role"] * with_role, *["structure"] * has_structures)
    head = (*names, *run_table.score_header(scoring, sites), "patients", "images")
    notes = [f"{note}." for note in (run_table.INTERVAL_NOTE, *scoring.notes_in(RUN_TABLE))]
    return PageTable(text_table("Scores by site", head, rows, len(names)), notes, len(means))


def failure_table(scoring: Scoring, summary: Mapping[str, Any]) -> PageTable | None:
    """Calibration error and failures; None for a run that has none of them."""
    if not (rows := run_table.failure_rows(scoring, summary)):
        return None
    notes = [f"{note}." for note in run_table.failure_notes(scoring, summary)]
    n_sites = len(run_table.groups_of(summary, means=()))
    table = text_table("Calibration and failures by site", rows[0], rows[1:], n_words=2)
    return PageTable(table, notes, len(rows) - 1 - n_sites)


def cost_table(runs: Sequence[Run]) -> PageTable:
    """Mean time and bytes of each method."""
    costs = costs_by_row([(run.row, run.unseen, run.summary["seed"], run.folder) for run in runs])
    head, *rows = cost_rows(costs)
    return PageTable(
        text_table("Seconds and bytes of a client in a round, and what it does once", head, rows), [f"{NOTE}."]
    )


OVERLAY_NOTE = (
    "The image is the patient's image with the lowest score; of a volume, the slice with the largest reference area. "
    "Blue line: reference; yellow line: prediction. Thin structures are filled: blue is true positive, magenta false "
    "positive, yellow false negative."
)


def patient_table(run: Run, max_overlays: int) -> PatientTable:
    """One row for each test patient, the unseen ones and the lowest scores first; overlays for the first rows."""
    table = _classified(run.scores) if run.scoring.task == "classification" else _segmented(run.scores, run.scoring)
    unseen = run.scores[run.scores.role == "unseen"]
    places = {patient: place for place, patient in enumerate(sorted({*zip(unseen.site, unseen.patient)}))}
    order = table.assign(place=table.role.map(list(ROLES).index)).sort_values(["place", "worst"], kind="stable")
    rows, n_shown = [], 0
    for line in order.drop(columns=["place", "worst"]).head(MAX_PATIENTS).itertuples(index=False):
        role, site, patient, *scores = line
        place = places.get((site, patient)) if role == "unseen" else None
        overlay = _overlay(run, place, f"{site}, {patient}") if place is not None and n_shown < max_overlays else None
        n_shown += overlay is not None
        rows.append((overlay, (patient, site, ROLES[role], *scores)))
    notes = [f"The first {MAX_PATIENTS} of {len(table)} patients; all are in cases.csv."] * (len(table) > MAX_PATIENTS)
    if n_shown and run.scoring.has_structures:
        notes.append(OVERLAY_NOTE)
    if n_shown and n_shown < len(places):
        notes.append(f"Images of the {n_shown} unseen patients with the lowest scores; others are in figures/patients.")
    head = ("image", "patient", "site", "role", *table.columns.drop([*PATIENT, "worst"]))
    return PatientTable(head, rows, 4, " ".join(notes))


def _overlay(run: Run, place: int, caption: str) -> EmbeddedFigure | None:
    path = run.folder.path / FIGURES / "patients" / f"{place:03d}.webp"
    return embed(caption, path.read_bytes(), "image/webp") if path.is_file() else None


def _segmented(scores: pd.DataFrame, scoring: Scoring) -> pd.DataFrame:
    """The scores of each patient by structure and metric, and what failed; `worst` sorts the rows."""
    metrics = {metric.name: metric for metric in scoring.metrics_in(CASES)}
    values = patient_values(scores, scoring.by_name)
    own = values[values.metric.isin(metrics)]
    main = own[own.metric == scoring.metrics[0].name].groupby(PATIENT).score.mean()
    table = scores[PATIENT].drop_duplicates().set_index(PATIENT)
    n_structures = own.structure.nunique()
    for (metric, structure, unit), of_column in own.groupby(["metric", "structure", "unit"], sort=False):
        name = f"{f'{structure}, ' * (n_structures > 1)}{metrics[metric].label}{f' ({unit})' * bool(unit)}"
        texts = of_column.set_index(PATIENT).score.map(lambda value, n=metrics[metric].decimals: number(value, n))
        table[name] = texts.reindex(table.index).fillna("-")
    failed = scores[~scores.status.isin([OK, ABSENT])].groupby(PATIENT).status
    texts = failed.agg(lambda statuses: ", ".join(status.replace("_", " ") for status in sorted(set(statuses))))
    table["failure"] = texts.reindex(table.index).fillna("")
    return table.assign(worst=main.reindex(table.index)).reset_index()


def _classified(scores: pd.DataFrame) -> pd.DataFrame:
    """Classes and predictions of each patient; `worst` is the share of correct images, then their confidence."""
    images = predictions(scores)
    images["of_class"] = images.confidence.where(images.correct, 1 - images.confidence)
    grouped = images.groupby(PATIENT)
    n, right = grouped.size(), grouped.correct.sum()
    table = pd.DataFrame(
        {
            "class": grouped.label.agg(lambda labels: ", ".join(sorted(set(labels)))),
            "predicted": grouped.predicted.agg(lambda labels: ", ".join(sorted(set(labels)))),
            "confidence (%)": (100 * grouped.confidence.mean()).map("{:.1f}".format),
            "images": n.astype(str),
            "correct": right.astype(str),
            "worst": right / n + grouped.of_class.mean() / 1000,
        }
    )
    return table.reset_index()
