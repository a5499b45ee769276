"""The results of classification: a row is one image.

A row is a plain dict, as `case_row` makes it: `site`, `role` ("seen", "unseen" or "validation"), `patient` (the image),
`subject` (the patient), `label` and `predicted` (names of classes), a column `p_CLASS` per class (probability) and
`correct` (0 or 1). Scores are those of all images of a site, under the one structure "all".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from medfed.core.errors import UserError
from medfed.metrics.accuracy import Accuracy
from medfed.metrics.auroc import AreaUnderROC
from medfed.metrics.balanced_accuracy import BalancedAccuracy
from medfed.metrics.case_file import parse_row, read_csv, write_rows
from medfed.metrics.class_metric import ClassMetric, compute_class_metrics
from medfed.metrics.ece import ExpectedCalibrationError
from medfed.metrics.metric import Metric
from medfed.metrics.summary import N_BOOTSTRAP, ROLES, VALIDATION, Group, bootstrap_indices, wilcoxon_test
from medfed.tasks.scoring import ALL, CARD, CASES, COMPARISON, GAP, RUN_TABLE, BoxPlotValue, Scoring

CLASS_METRICS: tuple[Metric, ...] = (Accuracy(), BalancedAccuracy(), AreaUnderROC(), ExpectedCalibrationError())
MAX_WEIGHTINGS = 100  # that are computed together: bounds the memory of a site with many images
MAX_UNDEFINED = 0.05  # fraction of resamples without a score (a class was not drawn) with which there is an interval


@dataclass(frozen=True)
class ClassScoring(Scoring):
    """Scores of predicted classes."""

    metrics: tuple[Metric, ...] = CLASS_METRICS

    task = "classification"
    views = {
        RUN_TABLE: ("accuracy", "auroc", "balanced_accuracy", "ece"),
        COMPARISON: ("accuracy", "auroc"),
        CARD: ("accuracy", "auroc", "balanced_accuracy", "ece"),
        CASES: (),
        GAP: ("accuracy", "auroc"),
    }
    other_columns = ("site", "role", "patient", "subject", "label", "predicted")
    counts = ("n", "n_subjects", "n_wrong")
    has_structures = False
    leading_counts = (("n", "images"), ("n_subjects", "people"))
    trailing_counts = ()
    spread_over_sites = True
    shows_interval = True
    spread_note = "[] is the 95 % interval over people; ± is the sd over sites"
    interval_note = "[] is the 95 % interval over people (bootstrap); ± is the standard deviation over sites"
    notes = ()
    score_description = "score over a site's images"
    failure_heading = "wrong"
    missing_score_reason = "the site has images of one class only"
    tested_population = "the share of images told right of each of all n unseen people (over all seeds)"
    figures = ("reliability", "roc", "confusion", "image_examples")

    def structure_of(self, row: Mapping) -> str:
        return ALL

    def score_group(self, rows: list[dict], seed: tuple) -> Group:
        """n (images), n_subjects (patients), n_wrong, n_by_class, and per metric {n, mean (the score), low, high}.

        low and high are the 95 % percentile bootstrap that draws whole patients with all their images; None for one
        patient, and where more than one resample in twenty has no score.
        """
        classes, subjects = classes_of(rows), sorted({row["subject"] for row in rows})
        found: Group = {
            "n": len(rows), "n_subjects": len(subjects), "n_wrong": sum(not row["correct"] for row in rows),
            "n_by_class": {name: sum(row["label"] == name for row in rows) for name in classes},
        }  # fmt: skip
        intervals = self._intervals(rows, subjects, seed)
        for name, mean in self._values(rows).items():
            low, high = intervals.get(name, (None, None)) if mean is not None else (None, None)
            found[name] = {"n": len(rows), "mean": mean, "low": low, "high": high}
        return found

    def summarise(self, rows: Sequence[dict], rng_seed: int) -> dict[str, Any]:
        return super().summarise(rows, rng_seed) | {"classes": list(classes_of(rows))}

    def check(self, rows: Sequence[dict]) -> None:
        classes, known = classes_of(rows), set()
        for row in rows:
            case, named = (row["site"], row["patient"]), f"{row['site']}/{row['patient']}"
            if case in known:
                raise ValueError(f"{named} is scored twice")
            known.add(case)
            if row["role"] not in (*ROLES, VALIDATION):
                raise ValueError(f"{named}: role {row['role']!r} must be of {(*ROLES, VALIDATION)}")
            if classes_of([row]) != classes or not {row["label"], row["predicted"]} <= set(classes):
                raise ValueError(f"{named}: label {row['label']!r} and predicted {row['predicted']!r} must be of the "
                                 f"classes {classes}, the same for all images")
            values = [row[f"p_{name}"] for name in classes]
            if not all(value is not None and 0 <= value <= 1 for value in values):
                raise ValueError(f"{named}: the probabilities {values} must be in [0, 1]; unknown is no probability")
            expected = classes[int(np.argmax(values))]
            if row["predicted"] != expected or row["correct"] != (expected == row["label"]):
                raise ValueError(f"{named}: predicted {row['predicted']!r} and correct {row['correct']} do not fit the "
                                 f"label {row['label']!r} and the most probable class {expected!r}")

    def write_cases(self, path: str | Path, rows: Sequence[dict]) -> None:
        """Probabilities in full, so that reading gives the same scores."""
        self.check(rows)
        header = (*self.other_columns, *(f"p_{name}" for name in classes_of(rows)), "correct")
        write_rows(path, rows, header, ("role", "site", "patient"), lambda value, _: str(value))

    def read_cases(self, path: str | Path) -> list[dict]:
        header, *lines = read_csv(path) or [[]]
        n = len(self.other_columns)
        numbers = header[n:]
        named = all(column.startswith("p_") for column in numbers[:-1])
        if tuple(header[:n]) != self.other_columns or numbers[-1:] != ["correct"] or not named:
            expected = ",".join((*self.other_columns, "p_CLASS", "...", "correct"))
            raise UserError(f"{path}: the first line is not {expected}; is this a file of classified images?")
        rows = [parse_row(path, number, header, line, numbers) for number, line in enumerate(lines, start=2)]
        try:
            self.check(rows)
        except ValueError as error:
            raise UserError(f"{path}: {error}") from error
        return [row | {"correct": int(row["correct"])} for row in rows]

    def overall_score(self, rows: Sequence[dict], key: str) -> float | None:
        """The score of all images; None where it is undefined, or the code of the metric is not here."""
        return self._values(rows).get(key) if rows else None

    def has_value(self, rows: Sequence[dict], key: str) -> bool:
        return bool(rows) and any(metric.name == key for metric in self.metrics)

    def paired_test(self, rows_a: Sequence[dict], rows_b: Sequence[dict], key: str) -> dict:
        """Over patients: the fraction of a patient's images that is classified correctly, over all seeds.

        Over patients and not images, as images of one patient are alike.
        """
        if key != "accuracy":
            return {"p": None, "n": None, "reason": f"{key} belongs to a site and not to a person, so it has no pairs"}
        return wilcoxon_test(_by_subject(rows_a), _by_subject(rows_b), "people")

    def is_failure(self, row: Mapping) -> bool:
        return not row["correct"]

    def is_case(self, row: Mapping) -> bool:
        return True

    def has_cross(self, row: Mapping) -> bool:
        return False

    def box_plot_values(self, rows: Sequence[Mapping]) -> list[BoxPlotValue]:
        true_class = BoxPlotValue("probability given to the true class", (0.0, 1.0), _true_probability, is_main=True)
        return [true_class]

    @property
    def _computable(self) -> list[ClassMetric]:
        """Without metrics of which a run's folder has the declaration alone."""
        return [metric for metric in self.metrics if isinstance(metric, ClassMetric)]

    def _values(self, rows: Sequence[dict]) -> dict[str, float | None]:
        found = compute_class_metrics(self._computable, *probabilities_and_labels(rows), np.ones((1, len(rows))))
        return {name: None if math.isnan(values[0]) else float(values[0]) for name, values in found.items()}

    def _intervals(self, rows: list[dict], subjects: list[str], seed: tuple) -> dict[str, tuple]:
        """95 % percentile bootstrap: an image weighs as often as its patient was drawn."""
        if len(subjects) < 2:
            return {}
        metrics = [metric for metric in self._computable if metric.has_interval]
        probabilities, labels = probabilities_and_labels(rows)
        place = {subject: index for index, subject in enumerate(subjects)}
        subject_of = np.array([place[row["subject"]] for row in rows])
        blocks = []
        for draws in np.array_split(bootstrap_indices(len(subjects), seed), N_BOOTSTRAP // MAX_WEIGHTINGS):
            times = np.stack([np.bincount(line, minlength=len(subjects)) for line in draws])
            blocks.append(compute_class_metrics(metrics, probabilities, labels, times[:, subject_of]))
        names = [metric.name for metric in metrics]
        return {name: _percentiles(np.concatenate([block[name] for block in blocks])) for name in names}


def case_row(
    site: str, role: str, patient: str, subject: str, label: int, probabilities: Sequence[float], classes: Sequence[str]
) -> dict:
    """The row of one image; `label` is the number of its class, `probabilities` (K,) those of the K `classes`."""
    values = [float(value) for value in probabilities]
    predicted = int(np.argmax(values))
    row = {"site": site, "role": role, "patient": patient, "subject": subject, "label": classes[label]}
    row["predicted"] = classes[predicted]
    named: dict[str, object] = {f"p_{name}": value for name, value in zip(classes, values, strict=True)}
    return row | named | {"correct": int(predicted == label)}


def classes_of(rows: Sequence[Mapping]) -> tuple[str, ...]:
    """The names of the classes, in the order of their numbers."""
    return tuple(column[2:] for column in rows[0] if column.startswith("p_")) if rows else ()


def probabilities_and_labels(rows: Sequence[Mapping]) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (N, K) float64 and labels (N,) of the rows, for `medfed.metrics.class_metric`."""
    classes = classes_of(rows)
    probabilities = np.array([[row[f"p_{name}"] for name in classes] for row in rows], dtype=np.float64)
    return probabilities, np.array([classes.index(row["label"]) for row in rows], dtype=np.int64)


def _percentiles(values: np.ndarray) -> tuple[float | None, float | None]:
    known = values[~np.isnan(values)]
    if len(known) < (1 - MAX_UNDEFINED) * len(values):
        return None, None
    low, high = np.percentile(known, [2.5, 97.5])
    return float(low), float(high)


def _true_probability(row: Mapping) -> float:
    return row[f"p_{row['label']}"]


def _by_subject(rows: Sequence[dict]) -> dict[tuple, float]:
    correct: dict[tuple, list[int]] = {}
    for row in rows:
        correct.setdefault((row["site"], row["subject"]), []).append(row["correct"])
    return {subject: sum(found) / len(found) for subject, found in correct.items()}
