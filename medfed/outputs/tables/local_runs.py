"""The runs of the row `local` in a comparison: for each unseen site and seed, one model for each source site."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from medfed.outputs.tables.comparison_row import ComparisonRow
from medfed.tasks.scoring import Scoring

MODEL = "trained_at"  # key of a row of scores: the site whose images the model was trained with


def merge_local(results: Sequence[dict], role: str) -> list[dict]:
    """Merge the runs of `local` at the source sites to one result for each unseen site and seed, with the first model's
    summary. `results` and `role` as in `build_table`; merged rows have the key "trained_at" instead of "row"."""
    merged: dict[tuple, dict] = {}
    for result in results:
        row = result.get("row", ComparisonRow(result["method"]))
        key = (result["method"], result[f"{role}_site"], result["seed"], "" if row.trained_at else len(merged))
        own = {name: value for name, value in result.items() if name != "row"}
        if row.trained_at:
            summary = {name: value for name, value in result["summary"].items() if name != role}
            own |= {"rows": [case | {MODEL: row.trained_at} for case in result["rows"]], "summary": summary}
        if key in merged:
            own = merged[key] | {"rows": [*merged[key]["rows"], *own["rows"]]}
        merged[key] = own
    return list(merged.values())


def score_of_models(scoring: Scoring, rows: Sequence[dict], key: str) -> float | None:
    """Mean of a site's scores over the models that scored it (usually one); None if one has none. `key` is a column."""
    scores = [scoring.overall_score(of_model, key) for of_model in _by_model(rows)]
    known = [score for score in scores if score is not None]
    return fmean(known) if known and len(known) == len(scores) else None


def values_of_patients(scoring: Scoring, runs: Iterable[Sequence[dict]], key: str) -> dict[str, float]:
    """Value of each patient of a site, averaged over runs and models, as stored; empty if a model has no values of
    patients."""
    values: dict[str, list[float]] = {}
    for rows in runs:
        for of_model in _by_model(rows):
            own = scoring.patient_values(of_model, key)
            if not own:
                return {}
            for patient, value in own.items():
                values.setdefault(patient, []).append(value)
    return {patient: fmean(values[patient]) for patient in sorted(values)}


def _by_model(rows: Sequence[dict]) -> list[list[dict]]:
    """Split the rows of a run by the model that scored them; usually there is one model."""
    models: dict[Any, list[dict]] = {}
    for row in rows:
        models.setdefault(row.get(MODEL), []).append(row)
    return list(models.values())
