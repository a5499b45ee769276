"""Results of segmentation: one row per image and structure.

A row has `site`, `role` ("seen", "unseen" or "validation"), `patient`, `image` (name of the case), `structure`, a value
for each column of the metrics (None if undefined), and `status` (`medfed.metrics.mask_metric.STATUSES`). Scores are
means over patients; the value of a patient is the mean of the patient's images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from medfed.core.errors import UserError
from medfed.metrics.case_file import parse_row, read_csv, write_rows
from medfed.metrics.failures import (
    FALSE_ALARM,
    LOW_DICE,
    MISSED,
    Share,
    failure_shares,
    summarise_failures,
)
from medfed.metrics.mask_metric import ABSENT, OK, STATUSES
from medfed.metrics.masks.assd import AverageSurfaceDistance
from medfed.metrics.masks.dice import Dice
from medfed.metrics.masks.hd import HausdorffDistance
from medfed.metrics.masks.hd95 import HausdorffDistance95
from medfed.metrics.masks.hd95_pooled import PooledHausdorffDistance95
from medfed.metrics.masks.mask_ece import MaskCalibrationError
from medfed.metrics.metric import DISTANCE, PERCENT_OF_DIAGONAL, Column, Metric, metric_columns
from medfed.metrics.summary import ROLES, VALIDATION, Group, interval_entries
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.scoring import CARD, CASES, COMPARISON, GAP, RUN, RUN_TABLE, BoxPlotValue, Scoring

MASK_METRICS: tuple[Metric, ...] = (
    Dice(),
    HausdorffDistance(),
    HausdorffDistance95(),
    AverageSurfaceDistance(),
    PooledHausdorffDistance95(),
    MaskCalibrationError(),
)
IN_VOXELS_OF_FILE = PooledHausdorffDistance95.name  # no mean without a voxel size: the sizes of the images may differ
CASE = ("site", "image", "structure")


@dataclass(frozen=True)
class MaskScoring(Scoring):
    """Computes, stores and describes the results of segmentation, from one row (a dict) per image and structure. A Dice
    below `failure_dice`, in (0, 1], is a failure."""

    metrics: tuple[Metric, ...] = MASK_METRICS
    failure_dice: float = Evaluation.failure_dice

    task = "segmentation"
    views = {
        RUN_TABLE: ("dice", "hd95"),
        COMPARISON: ("dice", "hd95", "hd", "ece"),
        CARD: ("dice", "hd95", "ece"),
        CASES: ("dice", "hd95"),
        GAP: ("dice", "hd95"),
    }
    other_columns = ("site", "role", "patient", "image", "structure", "status")
    counts = ("n", "n_patients", *(f"n_{status}" for status in STATUSES[1:]))
    has_structures = True
    trailing_counts = (("n_missed", "missed"),)
    spread_over_sites = False
    spread_note = "± is the sd over patients, each of whom counts with the mean of the images"
    notes = (
        "A missed organ or a false alarm counts as Dice 0 and as a distance of the image diagonal; a structure that is "
        "absent from reference and prediction is left out",
        f"A distance is in mm if the image file states its voxel size, and otherwise in {PERCENT_OF_DIAGONAL} of the "
        "image, because the sizes of the images may differ",
    )
    figures = ("site_boxes", "mask_overlays")

    @property
    def case_columns(self) -> tuple[str, ...]:
        """Columns of `cases.csv`: those that identify the row, the scores, and "status" (whether one of the masks is
        empty)."""
        first, last = self.other_columns[:-1], self.other_columns[-1:]
        return (*first, *(column.key for column in self.columns), *last)

    def structure_of(self, row: Mapping) -> str:
        return row["structure"]

    def score_group(self, rows: list[dict]) -> Group:
        """Means and "sd" are over patients. The group also has "n_missed" (images of which only the true mask contains
        the structure), "n_false_alarm" (only the predicted mask contains it) and "n_absent" (neither does)."""
        count = {f"n_{status}": sum(row["status"] == status for row in rows) for status in STATUSES[1:]}
        present = [row for row in rows if self.is_case(row)]
        group: Group = {"n": len(present), "n_patients": len({row["patient"] for row in present})} | count
        for column in self.columns:
            of_patients = self._values_by_patient(rows, column.key)
            values = np.array([fmean(of_images) for of_images in of_patients.values()], dtype=np.float64)
            mean = float(values.mean()) if len(values) else None
            sd = float(values.std(ddof=1)) if len(values) > 1 else None
            n = sum(map(len, of_patients.values()))
            group[column.key] = {"n": n, "mean": mean, "sd": sd, **interval_entries(values, column.limits)}
        return group

    def _values_by_patient(self, rows: Sequence[dict], key: str) -> dict[str, list[float]]:
        """The known values of a column, one per image, by patient."""
        values: dict[str, list[float]] = {}
        for row in rows:
            value = self._comparable_value(row, key)
            if value is not None:
                values.setdefault(row["patient"], []).append(value)
        return values

    def summarise(self, rows: Sequence[dict]) -> dict[str, Any]:
        """As in `Scoring`, and "failures" (`summarise_failures`)."""
        return super().summarise(rows) | {"failures": summarise_failures(rows, self.failure_dice)}

    def failure_shares(self, rows: Sequence[Mapping]) -> dict[str, Share | None]:
        """As in `Scoring`: the shares of missed structures, false alarms and low Dice."""
        return failure_shares(rows, self.failure_dice)

    @property
    def failure_titles(self) -> dict[str, str]:
        """ "Dice < 0.7" (by the setting), "missed" and "false alarm"."""
        return {LOW_DICE: f"Dice < {self.failure_dice:g}", MISSED: "missed", FALSE_ALARM: "false alarm"}

    def with_settings(self, summary: Mapping[str, Any]) -> MaskScoring:
        """A copy with the limit of the Dice in a run's summary; KeyError for a summary without it."""
        limit = float(summary["failures"]["dice_below"])
        if not 0 < limit <= 1:
            raise ValueError(f"failures: found dice_below {limit}, expected a number in (0, 1]")
        return replace(self, failure_dice=limit)

    def patient_scores(self, rows: Sequence[dict], key: str, absent: float | None = None) -> dict[tuple, float]:
        """The mean of a patient's images, for each run and model (keys "run" and "trained_at") first, then averaged
        over them."""
        values: dict[tuple, dict[tuple, list[float]]] = {}
        for row in rows:
            value = row.get(key)
            if value is None and absent is not None and not self.is_case(row):
                value = absent
            if value is not None:
                of_runs = values.setdefault((row["site"], row["patient"], row["structure"]), {})
                of_runs.setdefault((row.get(RUN), row.get("trained_at")), []).append(value)
        return {patient: fmean(map(fmean, of_runs.values())) for patient, of_runs in values.items()}

    def check(self, rows: Sequence[dict]) -> None:
        """A row is invalid if a score is neither finite nor None, or if its role or status is unknown."""
        checked: set[tuple] = set()
        for row in rows:
            case = tuple(row[key] for key in CASE)
            name = "/".join(map(str, case))
            if case in checked:
                raise ValueError(f"{name} occurs in two rows of the scores; expected one row")
            checked.add(case)
            for key, allowed in (("role", (*ROLES, VALIDATION)), ("status", STATUSES)):
                if row[key] not in allowed:
                    raise ValueError(f"{name}: {key} is {row[key]!r}; expected one of {', '.join(allowed)}")
            values = {column.key: row[column.key] for column in self.columns}
            not_finite = [key for key, value in values.items() if value is not None and not math.isfinite(value)]
            if not_finite:
                raise ValueError(f"{name}: {not_finite[0]} is {values[not_finite[0]]}; expected a number or None")

    def write_cases(self, path: str | Path, rows: Sequence[dict]) -> None:
        """Scores have six decimals. A score that is not defined becomes an empty cell."""
        self.check(rows)
        metrics = {column.key for column in self.columns}

        def format_cell(value: Any, column: str) -> str:
            return str(value) if column not in metrics else "" if value is None else f"{value:.6f}"

        write_rows(path, rows, self.case_columns, ("role", "site", "image", "structure"), format_cell)

    def read_cases(self, path: str | Path) -> list[dict]:
        lines, header = read_csv(path), self.case_columns
        if not lines or tuple(lines[0]) != header:
            raise UserError(
                f"{path}: the first line is not {','.join(header)}; expected the cases.csv of a segmentation run; "
                "copy the file again from the run"
            )
        numbers = [column.key for column in self.columns]
        rows = [parse_row(path, number, header, line, numbers) for number, line in enumerate(lines[1:], start=2)]
        try:
            self.check(rows)
        except ValueError as error:
            raise UserError(f"{path}: {error}") from error
        return rows

    def is_failure(self, row: Mapping) -> bool:
        """Whether the true mask contains the structure, but the predicted mask is empty."""
        return row["status"] == MISSED

    def is_case(self, row: Mapping) -> bool:
        """Whether the true mask or the predicted mask contains the structure."""
        return row["status"] != ABSENT

    def has_cross(self, row: Mapping) -> bool:
        """Whether the true mask or the predicted mask lacks the structure."""
        return row["status"] != OK

    def box_plot_values(self, rows: Sequence[Mapping]) -> list[BoxPlotValue]:
        """Dice, HD95, and the metrics under `evaluation.metrics`.

        A distance is in mm if all rows have it in mm, in percent of the image's diagonal if all rows have that, and is
        left out otherwise. Rows whose structure is in neither mask do not count.
        """
        main_names = (self.metrics[0].name, *self.chosen)
        values = []
        for metric in self.metrics_in(CASES):
            if column := self._common_column(metric, rows):
                is_main = metric.name in main_names
                values.append(BoxPlotValue(column.title, metric.limits, partial(_value, column.key), is_main))
        return values

    def _common_column(self, metric: Metric, rows: Sequence[Mapping]) -> Column | None:
        """The column of a metric in a unit that all cases have; None if there is no such unit."""
        columns, present = metric_columns(metric), [row for row in rows if self.is_case(row)]
        if metric.unit != DISTANCE and metric.name != IN_VOXELS_OF_FILE:
            return columns[0]
        for column in columns:
            if present and all(self._comparable_value(row, column.key) is not None for row in present):
                return column
        return None

    def _comparable_value(self, row: Mapping, key: str) -> float | None:
        """The value of a column that can be averaged with those of other images; None if there is none.

        A distance in voxels of the image file depends on the size of the image. It is None for an image without a voxel
        size, whose other distances are in percent of the image's diagonal.
        """
        relative = (column.key for column in self.columns if column.unit == PERCENT_OF_DIAGONAL)
        if key == IN_VOXELS_OF_FILE and any(row.get(name) is not None for name in relative):
            return None
        return row.get(key)

    def summary_notes(self, summary: Mapping[str, Any]) -> list[str]:
        """The numbers of false alarms and of absent structures, and the mean error of a ratio."""
        means = [group for role in ROLES for group in summary[role]["mean"].values()]
        n_false_alarm, n_absent = (sum(group[key] for group in means) for key in ("n_false_alarm", "n_absent"))
        notes = []
        if n_false_alarm:
            notes.append(f"False alarms (structures predicted where the reference has none): {n_false_alarm}.")
        if n_absent:
            notes.append(
                f"Images without the structure in reference and prediction, left out of all means: {n_absent}."
            )
        if ratio := summary.get("vertical_ratio"):
            inner, outer = ratio["of"]
            errors = [(role, ratio[role]["mean_error"]) for role in ROLES]
            listed = ", ".join(f"{role} {error:.3f}" for role, error in errors if error is not None)
            notes.append(f"Mean absolute error of the vertical {inner}-to-{outer} ratio: {listed} (ratios.csv).")
        return notes


def _value(key: str, row: Mapping) -> float | None:
    """The cell of a column, with the column first so that `partial` can fix it."""
    return row.get(key)
