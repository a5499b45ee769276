"""Results of segmentation: one row per image and structure.

A row is a plain dict: `site`, `role` ("seen", "unseen" or "validation"), `patient`, `image` (the name of a case),
`structure`, a value for each column of the metrics (None if it is not defined), and `status`
(`medfed.metrics.mask_metric.STATUSES`). Scores are means over patients; the value of a patient is the mean of the
patient's images.
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
from medfed.metrics.assd import AverageSurfaceDistance
from medfed.metrics.case_file import parse_row, read_csv, write_rows
from medfed.metrics.dice import Dice
from medfed.metrics.failures import (
    FALSE_ALARM,
    LOW_DICE,
    MISSED,
    Share,
    failure_shares,
    summarise_failures,
)
from medfed.metrics.hd import HausdorffDistance
from medfed.metrics.hd95 import HausdorffDistance95
from medfed.metrics.hd95_pooled import PooledHausdorffDistance95
from medfed.metrics.mask_ece import MaskCalibrationError
from medfed.metrics.mask_metric import ABSENT, OK, STATUSES
from medfed.metrics.metric import DISTANCE, PERCENT_OF_DIAGONAL, Column, Metric, metric_columns
from medfed.metrics.significance import wilcoxon_test
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
    """Computes, stores and describes the results of segmentation, from one row (a dict) per image and structure.

    Args:
        metrics: all metrics of the run; the first is the main metric.
        chosen: names of the metrics listed in the config key `evaluation.metrics`.
        failure_dice: a Dice below this value, in (0, 1], is a failure.
    """

    metrics: tuple[Metric, ...] = MASK_METRICS
    failure_dice: float = Evaluation.failure_dice

    task = "segmentation"
    views = {
        RUN_TABLE: ("dice", "hd95", "assd"),
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
    score_description = "mean over patients"
    failure_heading = "missed"
    missing_score_reason = "not all of a site's cases have this unit"
    tested_population = "all n unseen patients (each averaged over seeds and images first)"
    figures = ("site_boxes", "mask_overlays")

    @property
    def case_columns(self) -> tuple[str, ...]:
        """Names of the columns of `cases.csv`, in the order of the file.

        The first columns identify the row: site, role, patient, image and structure. The columns of the scores follow.
        The last column is "status", which says whether the true mask or the predicted mask is empty.
        """
        first, last = self.other_columns[:-1], self.other_columns[-1:]
        return (*first, *(column.key for column in self.columns), *last)

    def structure_of(self, row: Mapping) -> str:
        """Return the name of the structure, such as "prostate", whose scores a row of `cases.csv` contains."""
        return row["structure"]

    def score_group(self, rows: list[dict]) -> Group:
        """Compute counts and scores from the rows of one site and one structure.

        Args:
            rows: one row (a dict) per image, all of the same site and structure. The role of the site is the same in
                all rows: "seen" (it trained), "unseen" (it did not train) or "validation" (it did not train, but may
                have helped to select the round).

        Returns:
            "n" and "n_patients" (numbers of images and patients in the means), "n_missed" (images of which only the
            true mask contains the structure), "n_false_alarm" (only the predicted mask contains it), "n_absent"
            (neither mask contains it), and for each column, such as "dice" or "hd95_mm", {"n" (number of images with a
            value), "mean" and "sd" over patients} and the entries of `medfed.metrics.summary.interval_entries`. Values
            that are not defined are None.
        """
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
        """Return the known values of a column, one per image, by patient."""
        values: dict[str, list[float]] = {}
        for row in rows:
            value = self._comparable_value(row, key)
            if value is not None:
                values.setdefault(row["patient"], []).append(value)
        return values

    def summarise(self, rows: Sequence[dict]) -> dict[str, Any]:
        """Compute all scores of a segmentation run, as the part of `summary.json` that describes them.

        Args:
            rows: all rows of the run, one per image and structure.

        Returns:
            JSON values: the entries of `Scoring.summarise`, and "failures" (`summarise_failures`).

        Raises:
            ValueError: if a row is invalid, or a structure of an image has two rows.
        """
        return super().summarise(rows) | {"failures": summarise_failures(rows, self.failure_dice)}

    def failure_shares(self, rows: Sequence[Mapping]) -> dict[str, Share | None]:
        """Return the shares of patients for whom the segmentation of one structure failed.

        Args:
            rows: rows of `cases.csv` of the structure, of one or several models and sites.

        Returns:
            "low_dice", "missed" and "false_alarm", as `medfed.metrics.failures.failure_shares` returns them.
        """
        return failure_shares(rows, self.failure_dice)

    @property
    def failure_titles(self) -> dict[str, str]:
        """The heading of each kind of failure: "Dice < 0.7" (by the setting), "missed" and "false alarm"."""
        return {LOW_DICE: f"Dice < {self.failure_dice:g}", MISSED: "missed", FALSE_ALARM: "false alarm"}

    def with_settings(self, summary: Mapping[str, Any]) -> MaskScoring:
        """Return this object with the limit of the Dice with which a run was scored.

        Args:
            summary: content of the run's `summary.json`. Those of older versions do not have the limit.

        Raises:
            KeyError: if the summary has failures without a limit.
            TypeError: if the limit is not a number.
            ValueError: if the limit is not in (0, 1].
        """
        if "failures" not in summary:
            return self
        limit = float(summary["failures"]["dice_below"])
        if not 0 < limit <= 1:
            raise ValueError(f"failures: found dice_below {limit}, expected a number in (0, 1]")
        return replace(self, failure_dice=limit)

    def patient_values(self, rows: Sequence[dict], key: str) -> dict[str, float]:
        """Return the mean of each patient's images; empty if an image with the structure has no value.

        Args:
            rows: the rows of one run, site and structure, one per image.
            key: name of the column, such as "dice" or "hd95_mm".
        """
        if any(self._comparable_value(row, key) is None for row in rows if self.is_case(row)):
            return {}
        return {patient: fmean(values) for patient, values in self._values_by_patient(rows, key).items()}

    def patient_scores(self, rows: Sequence[dict], key: str, absent: float | None = None) -> dict[tuple, float]:
        """Return the score of each patient, by (site, patient, structure): the mean of the patient's images.

        It is computed for each run and model first, and then averaged over them, as the intervals are.

        Args:
            rows: the rows of one or more runs, one per image, structure and run. Rows of several runs have the key
                "run", and those of several models of a run the key "trained_at".
            key: name of the column, such as "dice" or "hd95_mm".
            absent: value of a row whose true and predicted mask both lack the structure; None leaves the row out.
        """
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
        """Check that every row is valid, and that no structure of an image has two rows.

        A row is invalid if a score is not finite (None stands for an unknown score), if the role is not "seen",
        "unseen" or "validation", or if the status is not "ok", "missed", "false_alarm" or "absent".

        Args:
            rows: all rows of a run, one per image and structure.

        Raises:
            ValueError: if a row is invalid, or a structure of an image has two rows.
        """
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
        """Write the rows to the file `cases.csv`, sorted by role, site, image and structure.

        Scores have six decimals. A score that is not defined becomes an empty cell.

        Args:
            path: the file.
            rows: all rows of a run, one per image and structure.

        Raises:
            ValueError: if a row is invalid, or a structure of an image has two rows.
        """
        self.check(rows)
        metrics = {column.key for column in self.columns}

        def format_cell(value: Any, column: str) -> str:
            return str(value) if column not in metrics else "" if value is None else f"{value:.6f}"

        write_rows(path, rows, self.case_columns, ("role", "site", "image", "structure"), format_cell)

    def read_cases(self, path: str | Path) -> list[dict]:
        """Read the rows of a segmentation run from a CSV file that `write_cases` wrote.

        Args:
            path: the file.

        Returns:
            One dict per image and structure, by column name. Scores are numbers; an empty cell becomes None.

        Raises:
            UserError: if the file has another header, or a line that is not valid.
        """
        lines, header = read_csv(path), self.case_columns
        if not lines or tuple(lines[0]) != header:
            raise UserError(
                f"{path}: the first line is not {','.join(header)}; expected the cases.csv of a segmentation run of "
                "this version of medfed; copy the file again from the run, or repeat the run"
            )
        numbers = [column.key for column in self.columns]
        rows = [parse_row(path, number, header, line, numbers) for number, line in enumerate(lines[1:], start=2)]
        try:
            self.check(rows)
        except ValueError as error:
            raise UserError(f"{path}: {error}") from error
        return rows

    def overall_score(self, rows: Sequence[dict], key: str) -> float | None:
        """Compute the mean of a column over all patients of one site, for one structure.

        Rows are left out if neither the true mask nor the predicted mask contains the structure.

        Args:
            rows: all rows of the site and structure, one per image.
            key: name of the column, such as "dice" or "hd95_mm".

        Returns:
            The mean as stored: Dice is in [0, 1], a distance is in the unit of the column. None if one of the remaining
            rows has no value in the column, or if no row remains.
        """
        values = self.patient_values(rows, key)
        return fmean(values.values()) if values else None

    def has_value(self, rows: Sequence[dict], key: str) -> bool:
        """Return whether at least one of the rows has a score in the column `key`.

        Args:
            rows: rows with the scores of one structure of one image each.
            key: name of the column, such as "dice" or "hd95_mm".
        """
        return any(self._comparable_value(row, key) is not None for row in rows)

    def paired_test(self, rows_a: Sequence[dict], rows_b: Sequence[dict], key: str) -> dict:
        """Compare two methods by a paired Wilcoxon signed-rank test over patients and structures.

        Each pair is one structure of one patient. For each method, the values of a pair are first averaged over the
        seeds and over the patient's images.

        Args:
            rows_a: rows of the first method, one per image, structure and seed.
            rows_b: rows of the second method, one per image, structure and seed.
            key: name of the column to compare, such as "dice" or "hd95_mm".

        Returns:
            A dict with at least these keys:

            * "p": the two-sided p value; None if there is none.
            * "n": the number of pairs with values of both methods.
            * "reason": a sentence that says why there is no p value; None if there is one.
        """
        return wilcoxon_test(self.patient_scores(rows_a, key), self.patient_scores(rows_b, key), "patients")

    def is_failure(self, row: Mapping) -> bool:
        """Return whether a structure was missed: the true mask contains the structure, but the predicted mask is empty.

        Args:
            row: the results of one structure of one image, with "status".
        """
        return row["status"] == MISSED

    def is_case(self, row: Mapping) -> bool:
        """Return whether comparison tables count a row in the number of cases.

        A row counts if the true mask or the predicted mask contains the structure.

        Args:
            row: the results of one structure of one image, with "status".
        """
        return row["status"] != ABSENT

    def has_cross(self, row: Mapping) -> bool:
        """Return whether box plots draw a row as a cross: if the true mask or the predicted mask lacks the structure.

        Args:
            row: the results of one structure of one image, with "status".
        """
        return row["status"] != OK

    def box_plot_values(self, rows: Sequence[Mapping]) -> list[BoxPlotValue]:
        """Return one entry for each metric that box plots show: Dice, HD95, and the metrics under `evaluation.metrics`.

        Args:
            rows: the rows that are drawn, one per image and structure. The rows decide the unit of a distance: mm if
                all rows have a value in mm, percent of the image's diagonal if all rows have such a value. Otherwise
                the distance is left out. Rows whose structure is in neither mask do not count.
        """
        main_names = (self.metrics[0].name, *self.chosen)
        values = []
        for metric in self.metrics_in(CASES):
            if column := self._common_column(metric, rows):
                is_main, is_distance = metric.name in main_names, metric.unit == DISTANCE
                values.append(
                    BoxPlotValue(column.title, metric.limits, partial(_value, column.key), is_main, is_distance)
                )
        return values

    def _common_column(self, metric: Metric, rows: Sequence[Mapping]) -> Column | None:
        """Return the column of a metric in a unit that all cases have; None if there is no such unit."""
        columns, present = metric_columns(metric), [row for row in rows if self.is_case(row)]
        if metric.unit != DISTANCE and metric.name != IN_VOXELS_OF_FILE:
            return columns[0]
        for column in columns:
            if present and all(self._comparable_value(row, column.key) is not None for row in present):
                return column
        return None

    def _comparable_value(self, row: Mapping, key: str) -> float | None:
        """Return the value of a column that can be averaged with those of other images; None if there is none.

        A distance in voxels of the image file depends on the size of the image. It is None for an image without a voxel
        size, whose other distances are in percent of the image's diagonal.
        """
        relative = (column.key for column in self.columns if column.unit == PERCENT_OF_DIAGONAL)
        if key == IN_VOXELS_OF_FILE and any(row.get(name) is not None for name in relative):
            return None
        return row.get(key)

    def summary_notes(self, summary: Mapping[str, Any]) -> list[str]:
        """Return the sentences to print below the table of one run.

        The sentences explain the metrics. If there are false alarms (structures that only the predicted mask contains)
        or absent structures (in neither the true nor the predicted mask), a sentence states their number. If the run
        measured a ratio of two structures' heights, such as cup to disc, a sentence states the mean error of the ratio.

        Args:
            summary: content of the run's `summary.json`.
        """
        means = [group for role in ROLES for group in summary[role]["mean"].values()]
        n_false_alarm, n_absent = (sum(group[key] for group in means) for key in ("n_false_alarm", "n_absent"))
        notes = super().summary_notes(summary)
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
    return row.get(key)
