"""The tables of the page about one run: scores by site, failures, patients and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from medfed.metrics.mask_metric import ABSENT, OK
from medfed.outputs.report.html import EmbeddedFigure, embed
from medfed.outputs.report.read import ReportRun
from medfed.outputs.run_folder import FIGURES
from medfed.outputs.tables import run_table
from medfed.outputs.tables.cost import NOTE, cost_rows, costs_by_row
from medfed.outputs.tables.run_table import MEANS, SITES
from medfed.results.scores import patient_values, predictions
from medfed.results.text_tables import TextTable, number, text_table
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import CASES, RUN_TABLE, Scoring

ROLES = {"unseen": "UNSEEN", "validation": "validation", "seen": "seen"}
MAX_PATIENTS = 500  # rows of a run's table of patients
PATIENT = ["role", "site", "patient"]


class PageTable(NamedTuple):
    """A table with its notes; a click on a heading sorts all rows but those of the foot."""

    table: TextTable
    notes: Sequence[str] = ()


def site_table(
    summary: Mapping[str, Any], sites: run_table.Labels = SITES, means: run_table.Labels = MEANS
) -> PageTable:
    """The scores by site and structure; below them the means over sites, and the gap between seen and unseen sites."""
    scoring = scoring_of(summary)
    table = run_table.score_table(scoring, summary, sites, means)
    notes = [f"{note}." for note in (run_table.INTERVAL_NOTE, *scoring.notes_in(RUN_TABLE))]
    return PageTable(table._replace(title="Scores by site"), notes)


def cost_table(runs: Sequence[ReportRun]) -> PageTable:
    """Mean time and bytes of each method."""
    costs = costs_by_row([(run.row, run.unseen, run.summary["seed"], run.folder) for run in runs])
    head, *rows = cost_rows(costs)
    return PageTable(
        text_table("Seconds and bytes of a client in a round, and what it does once", head, rows), [f"{NOTE}."]
    )


OVERLAY_NOTE = (
    "The image is the patient's image with the lowest score; of a volume, the slice with the largest reference area. "
    "Blue line: reference; yellow line: prediction. Thin structures are filled: green is true positive, yellow false "
    "positive, blue false negative."
)


def patient_table(run: ReportRun, max_overlays: int) -> dict[str, Any]:
    """One row (overlay or None, texts) for each test patient: the unseen ones and the lowest scores first."""
    table = _classified(run.scores) if run.scoring.task == "classification" else _segmented(run.scores, run.scoring)
    unseen = run.scores[run.scores.role == "unseen"]
    places = {patient: place for place, patient in enumerate(sorted({*zip(unseen.site, unseen.patient)}))}
    of_site = run.scores.groupby("site").patient
    numbers = {site: {name: n for n, name in enumerate(sorted(set(names)), start=1)} for site, names in of_site}
    order = table.assign(place=table.role.map(list(ROLES).index)).sort_values(["place", "worst"], kind="stable")
    rows, n_shown = [], 0
    for line in order.drop(columns=["place", "worst"]).head(MAX_PATIENTS).itertuples(index=False):
        role, site, patient, *scores = line
        number = f"patient {numbers[site][patient]}"
        place = places.get((site, patient)) if role == "unseen" else None
        overlay = _overlay(run, place, f"{site}, {number}") if place is not None and n_shown < max_overlays else None
        n_shown += overlay is not None
        rows.append((overlay, (number, site, ROLES[role], *scores)))
    notes = ["The numbers count the patients of a site in the order of their names, which are in cases.csv."]
    notes += [f"The first {MAX_PATIENTS} of {len(table)} patients; all are in cases.csv."] * (len(table) > MAX_PATIENTS)
    if n_shown and run.scoring.has_structures:
        notes.append(OVERLAY_NOTE)
    if n_shown and n_shown < len(places):
        notes.append(f"Images of the {n_shown} unseen patients with the lowest scores; others are in figures/patients.")
    head = ("image", "patient", "site", "role", *table.columns.drop([*PATIENT, "worst"]))
    return {"head": head, "rows": rows, "n_words": 4, "note": " ".join(notes)}


def _overlay(run: ReportRun, place: int, caption: str) -> EmbeddedFigure | None:
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
