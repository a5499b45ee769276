"""Results of classification: one row per image.

A row is a plain dict, as `case_row` makes it: `site`, `role` ("seen", "unseen" or "validation"), `patient`, `image`
(its name), `label` and `predicted` (names of classes), a column `p_CLASS` per class (probability)
and `correct` (0 or 1). Scores are computed over all images of a site, under the single structure "all".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from medfed.core.errors import UserError
from medfed.metrics.case_file import parse_row, read_csv, write_rows
from medfed.metrics.class_metric import ClassMetric, compute_class_metric, jackknife_values
from medfed.metrics.classes.accuracy import Accuracy
from medfed.metrics.classes.auroc import AreaUnderROC
from medfed.metrics.classes.balanced_accuracy import BalancedAccuracy
from medfed.metrics.classes.ece import ExpectedCalibrationError
from medfed.metrics.metric import Metric
from medfed.metrics.summary import ROLES, VALIDATION, Group, interval_entries
from medfed.tasks.scoring import ALL, CARD, CASES, COMPARISON, GAP, RUN_TABLE, BoxPlotValue, Scoring

CLASS_METRICS: tuple[Metric, ...] = (Accuracy(), BalancedAccuracy(), AreaUnderROC(), ExpectedCalibrationError())


@dataclass(frozen=True)
class ClassScoring(Scoring):
    """Computes, stores and describes the results of a classification run, from one row (a dict) per image."""

    metrics: tuple[Metric, ...] = CLASS_METRICS

    task = "classification"
    views = {
        RUN_TABLE: ("accuracy", "auroc", "balanced_accuracy", "ece"),
        COMPARISON: ("accuracy", "auroc"),
        CARD: ("accuracy", "auroc", "balanced_accuracy", "ece"),
        CASES: (),
        GAP: ("accuracy", "auroc"),
    }
    other_columns = ("site", "role", "patient", "image", "label", "predicted")
    counts = ("n", "n_patients", "n_wrong")
    has_structures = False
    trailing_counts = ()
    spread_over_sites = True
    spread_note = "± is the sd over sites"
    notes = ()
    figures = ("reliability", "roc", "confusion", "image_examples")

    def structure_of(self, row: Mapping) -> str:
        """Always "all", because an image has one class and no structures."""
        return ALL

    def score_group(self, rows: list[dict]) -> Group:
        """The group also has "n_wrong" (misclassified images) and "n_by_class" (images per class). There is no interval
        for a metric without one, or if the score is undefined without one of the patients."""
        classes = classes_of(rows)
        group: Group = {
            "n": len(rows),
            "n_patients": len({row["patient"] for row in rows}),
            "n_wrong": sum(not row["correct"] for row in rows),
            "n_by_class": {name: sum(row["label"] == name for row in rows) for name in classes},
        }
        limits = {column.key: column.limits for column in self.columns}
        values = self._jackknife_values(rows, [metric for metric in self._computable if metric.has_interval])
        for name, mean in self._scores(rows).items():
            of_patients = list(values.get(name, {}).values())
            group[name] = {"n": len(rows), "mean": mean, **interval_entries(of_patients, limits[name])}
        return group

    def patient_scores(self, rows: Sequence[dict], key: str, absent: float | None = None) -> dict[tuple, float]:
        """The fraction of correct images of each patient; only "accuracy" has scores of single patients."""
        correct: dict[tuple, list[int]] = {}
        for row in rows if key == "accuracy" else ():
            correct.setdefault((row["site"], row["patient"]), []).append(row["correct"])
        return {patient: sum(values) / len(values) for patient, values in correct.items()}

    def summarise(self, rows: Sequence[dict]) -> dict[str, Any]:
        """As in `Scoring`, and "classes", the names of the classes."""
        return super().summarise(rows) | {"classes": list(classes_of(rows))}

    def check(self, rows: Sequence[dict]) -> None:
        """A row is invalid if a value is missing or out of range, or if `predicted` and `correct` do not follow from
        the others."""
        classes, checked = classes_of(rows), set()
        for row in rows:
            case, name = (row["site"], row["image"]), f"{row['site']}/{row['image']}"
            if case in checked:
                raise ValueError(f"{name} occurs in two rows of the scores; expected one row for each image")
            checked.add(case)
            if row["role"] not in (*ROLES, VALIDATION):
                raise ValueError(f"{name}: the role is {row['role']!r}, expected one of {(*ROLES, VALIDATION)}")
            if classes_of([row]) != classes or not {row["label"], row["predicted"]} <= set(classes):
                raise ValueError(
                    f"{name}: label {row['label']!r} and predicted {row['predicted']!r} must be among the "
                    f"classes {classes}, which are the same for all images"
                )
            values = [row[f"p_{class_name}"] for class_name in classes]
            if not all(value is not None and 0 <= value <= 1 for value in values):
                raise ValueError(f"{name}: the probabilities are {values}, expected numbers in [0, 1]")
            expected = classes[int(np.argmax(values))]
            if row["predicted"] != expected or row["correct"] != (expected == row["label"]):
                raise ValueError(
                    f"{name}: the row has predicted={row['predicted']!r} and correct={row['correct']}, but by "
                    f"its probabilities and its label {row['label']!r} it must have predicted={expected!r} "
                    f"and correct={expected == row['label']} (1 means True, 0 means False)"
                )

    def write_cases(self, path: str | Path, rows: Sequence[dict]) -> None:
        """Probabilities have all their digits, so that the scores of the file are exactly those of the rows."""
        self.check(rows)
        header = (*self.other_columns, *(f"p_{name}" for name in classes_of(rows)), "correct")
        write_rows(path, rows, header, ("role", "site", "image"), lambda value, _: str(value))

    def read_cases(self, path: str | Path) -> list[dict]:
        header, *lines = read_csv(path) or [[]]
        n = len(self.other_columns)
        numbers = header[n:]
        are_probabilities = all(column.startswith("p_") for column in numbers[:-1])
        if tuple(header[:n]) != self.other_columns or numbers[-1:] != ["correct"] or not are_probabilities:
            expected = ",".join((*self.other_columns, "p_CLASS", "...", "correct"))
            raise UserError(
                f"{path}: the first line is not {expected}; expected the cases.csv of a classification run; "
                "copy the file again from the run"
            )
        rows = [parse_row(path, number, header, line, numbers) for number, line in enumerate(lines, start=2)]
        try:
            self.check(rows)
        except ValueError as error:
            raise UserError(f"{path}: {error}") from error
        return [row | {"correct": int(row["correct"])} for row in rows]

    def is_failure(self, row: Mapping) -> bool:
        """Whether the image is wrongly classified."""
        return not row["correct"]

    def is_case(self, row: Mapping) -> bool:
        """True: every row counts as a case."""
        return True

    def has_cross(self, row: Mapping) -> bool:
        """Whether box plots draw the value of a row as a cross."""
        return False

    def box_plot_values(self, rows: Sequence[Mapping]) -> list[BoxPlotValue]:
        """The only quantity in box plots: the predicted probability of an image's true class, in [0, 1]."""
        title = "predicted probability of the true class"
        return [BoxPlotValue(title, (0.0, 1.0), _true_probability, is_main=True)]

    @property
    def _computable(self) -> list[ClassMetric]:
        """Metrics whose code is available; the others are only declared in the folder of the run."""
        return [metric for metric in self.metrics if isinstance(metric, ClassMetric)]

    def _scores(self, rows: Sequence[dict]) -> dict[str, float | None]:
        """Each metric over the rows; None where it is undefined."""
        images = probabilities_and_labels(rows)
        return {metric.name: compute_class_metric(metric, *images) for metric in self._computable}

    def _jackknife_values(self, rows: Sequence[dict], metrics: Sequence[ClassMetric]) -> dict[str, dict[str, float]]:
        """By metric, the jackknife values by patient; without the metrics that have none."""
        patients = sorted({row["patient"] for row in rows})
        patient_of = np.searchsorted(patients, [row["patient"] for row in rows])
        images = probabilities_and_labels(rows)
        values = {metric.name: jackknife_values(metric, *images, patient_of) for metric in metrics}
        return {
            name: dict(zip(patients, of_patients.tolist(), strict=True))
            for name, of_patients in values.items()
            if np.isfinite(of_patients).all()
        }


def case_row(
    site: str, role: str, patient: str, image: str, label: int, probabilities: Sequence[float], classes: Sequence[str]
) -> dict:
    """The row of one image for `cases.csv`; see the module. The most probable of the K classes is the predicted one."""
    values = [float(value) for value in probabilities]
    predicted = int(np.argmax(values))
    row = {"site": site, "role": role, "patient": patient, "image": image, "label": classes[label]}
    row["predicted"] = classes[predicted]
    columns: dict[str, object] = {f"p_{name}": value for name, value in zip(classes, values, strict=True)}
    return row | columns | {"correct": int(predicted == label)}


def classes_of(rows: Sequence[Mapping]) -> tuple[str, ...]:
    """The names of the classes in rows of results, in the order of the class numbers; empty without rows."""
    return tuple(column[2:] for column in rows[0] if column.startswith("p_")) if rows else ()


def probabilities_and_labels(rows: Sequence[Mapping]) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (N, K) float64 in [0, 1] and class numbers (N,) int64 of N rows, in the order of the rows."""
    classes = classes_of(rows)
    probabilities = np.array([[row[f"p_{name}"] for name in classes] for row in rows], dtype=np.float64)
    return probabilities, np.array([classes.index(row["label"]) for row in rows], dtype=np.int64)


def _true_probability(row: Mapping) -> float:
    return row[f"p_{row['label']}"]
