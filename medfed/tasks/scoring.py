"""Base class of the results of a task: its metrics, its rows, its summary, and the texts of tables and figures.

It needs neither images nor a network, so that a report can be made from the folder of a run (`medfed.tasks.factory`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from medfed.metrics.failures import Share
from medfed.metrics.intervals import METHOD
from medfed.metrics.metric import Column, Metric, all_columns, check_declarations, describe_metric, metric_columns
from medfed.metrics.summary import Group, summarise

ALL = "all"  # name of the only structure in the results of a task without structures
RUN_TABLE, COMPARISON, CARD, CASES, GAP = VIEWS = ("run_table", "comparison", "card", "cases", "gap")
RUN = "run"  # key of a row of scores that names its run, where the rows of several runs are together
LEADING_COUNTS = (("n_patients", "patients"), ("n", "images"))  # (count, heading) of columns before the scores of a run


@dataclass(frozen=True)
class BoxPlotValue:
    """A quantity that box plots show for every case, such as Dice or HD95.

    Args:
        title: label of the axis.
        limits: (low, high) of the axis; None adapts the axis to the values.
        value: function that returns the quantity from a row of `cases.csv`; None if the row has no value.
        is_main: whether the quantity is the task's first metric, or a metric that the config lists under
            `evaluation.metrics`.
        is_distance: whether the quantity is a distance. The distances of cases with an empty mask are far above all
            others, so the axis needs a break.
    """

    title: str
    limits: tuple[float, float] | None
    value: Callable[[Mapping], float | None]
    is_main: bool = False
    is_distance: bool = False


@dataclass(frozen=True)
class Scoring(ABC):
    """Base class of the results of a task: how scores are computed from rows, stored in files, and described in tables.

    A row is a dict with the results of one image (classification), or of one structure of one image (segmentation).

    Args:
        metrics: all metrics of the run, in the order of the columns in files. The first is the task's main metric.
        chosen: names of the metrics listed in the config key `evaluation.metrics`, and of those that
            `evaluation.also_on` adds; every table and figure shows them.
    """

    metrics: tuple[Metric, ...]
    chosen: tuple[str, ...] = ()

    task: ClassVar[str]  # name of the task
    views: ClassVar[Mapping[str, tuple[str, ...]]]  # names of the metrics that each view of VIEWS shows
    other_columns: ClassVar[tuple[str, ...]]  # columns of cases.csv that are not metrics
    counts: ClassVar[tuple[str, ...]]  # counts in each group of the summary; the first is the number of scored cases
    has_structures: ClassVar[bool]  # whether there are scores for several structures of a case
    trailing_counts: ClassVar[tuple[tuple[str, str], ...]]  # (count, heading) of columns after the scores of a run
    spread_over_sites: ClassVar[bool]  # whether the standard deviation is over sites instead of cases
    spread_note: ClassVar[str]  # explains the standard deviation in the table of a run
    notes: ClassVar[tuple[str, ...]]  # sentences below every table, after the notes of the metrics
    score_description: ClassVar[str]  # what the score in a cell of a comparison is, such as "mean over cases"
    failure_heading: ClassVar[str]  # heading of the column that counts failures
    missing_score_reason: ClassVar[str]  # why a cell may be empty
    tested_population: ClassVar[str]  # what the p value compares, and over which patients
    figures: ClassVar[tuple[str, ...]]  # names of the figures that `medfed.experiments.figures` draws

    def __post_init__(self) -> None:
        check_declarations(self.metrics, (*self.other_columns, *self.counts, "n_by_class"))

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns of scores, in the order of the files; a column is a metric in one unit.

        A distance has two columns, one in mm and one in percent of the image's diagonal. Any other metric has one
        column.
        """
        return all_columns(self.metrics)

    def metrics_in(self, view: str) -> tuple[Metric, ...]:
        """Return the metrics that one kind of output shows.

        These are the metrics that the task defines for the output, then those of the config key `evaluation.metrics`. A
        metric that the run did not compute is left out.

        Args:
            view: the kind of output: "run_table" (the table of one run), "comparison" (the table of several methods),
                "card" (the model card of an exported bundle), "cases" (box plots of single cases) or "gap" (the
                difference between seen and unseen sites).
        """
        by_name = {metric.name: metric for metric in self.metrics}
        return tuple(by_name[name] for name in dict.fromkeys((*self.views[view], *self.chosen)) if name in by_name)

    def columns_in(self, view: str) -> tuple[Column, ...]:
        """Return the columns of scores that one kind of output shows; a column is a metric in one unit.

        A distance has two columns, one in mm and one in percent of the image's diagonal. Any other metric has one
        column.

        Args:
            view: the kind of output: "run_table" (the table of one run), "comparison" (the table of several methods),
                "card" (the model card of an exported bundle), "cases" (box plots of single cases) or "gap" (the
                difference between seen and unseen sites).
        """
        return tuple(column for metric in self.metrics_in(view) for column in metric_columns(metric))

    def notes_in(self, view: str) -> tuple[str, ...]:
        """Return the notes to print with one kind of table, such as the definition of HD95.

        Args:
            view: the kind of table: "run_table" (the table of one run), "comparison" (the table of several methods) or
                "card" (the model card of an exported bundle).

        Returns:
            First the notes of the metrics that the table shows, then the notes of the task. The notes have no full stop
            at the end.
        """
        return tuple(dict.fromkeys((*(metric.note for metric in self.metrics_in(view) if metric.note), *self.notes)))

    def summarise(self, rows: Sequence[dict]) -> dict[str, Any]:
        """Compute all scores of a run, as the part of `summary.json` that describes them.

        Args:
            rows: all rows of the run. A row is a dict with the results of one image, or of one structure of one
                image.

        Returns:
            JSON values: "task" (name of the task), "metrics" (name, unit, limits ... of each metric), "chosen_metrics"
            (names), "interval_method" (in words), and the scores: the entries "seen", "unseen" and "gap", and
            "validation" if there is a validation site (`medfed.metrics.summary.summarise`).

        Raises:
            ValueError: if a row is invalid or a case has two rows.
        """
        self.check(rows)
        scores = summarise(
            rows,
            self.structure_of,
            self.score_group,
            self.counts,
            {column.key: column.limits for column in self.columns},
            [column.key for column in self.columns_in(GAP)],
            self.spread_over_sites,
        )
        declared = {
            "metrics": [describe_metric(metric) for metric in self.metrics],
            "chosen_metrics": list(self.chosen),
        }
        return {"task": self.task, **declared, "interval_method": METHOD, **scores}

    def summary_notes(self, summary: Mapping[str, Any]) -> list[str]:
        """Return the sentences to print below the table of one run, such as the definition of HD95.

        Args:
            summary: content of the run's `summary.json`.
        """
        return [f"{note}." for note in self.notes_in(RUN_TABLE)]

    def failure_shares(self, rows: Sequence[Mapping]) -> dict[str, Share | None]:
        """Return the shares of patients for whom the segmentation failed; empty for a task without masks.

        Args:
            rows: rows of `cases.csv` of one structure, of one or several models and sites.

        Returns:
            The share of patients of each kind of failure, by a name in `failure_titles`; None without patients.
        """
        return {}

    @property
    def failure_titles(self) -> dict[str, str]:
        """The heading of each kind of failure that `failure_shares` counts, for example "Dice < 0.7"."""
        return {}

    def with_settings(self, summary: Mapping[str, Any]) -> Scoring:
        """Return this object with the settings with which a run was scored.

        Args:
            summary: content of the run's `summary.json`.

        Raises:
            TypeError: if a setting has another type.
            ValueError: if a setting is out of its range.
        """
        return self

    @abstractmethod
    def structure_of(self, row: Mapping) -> str:
        """Return the name of the structure, such as "prostate", whose scores a row of `cases.csv` contains.

        For classification, which has no structures, the name is "all".

        Args:
            row: the results of one image, or of one structure of one image.
        """

    @abstractmethod
    def score_group(self, rows: list[dict]) -> Group:
        """Compute counts and scores from the rows of one site and one structure.

        Args:
            rows: one row (a dict) per image, all of the same site and structure. The role of the site is the
                same in all rows: "seen" (it trained), "unseen" (it did not train) or "validation" (it did not train,
                but may have helped to select the round).

        Returns:
            The counts by name, such as "n" (number of cases). For each metric, a dict with at least "n" (number of
            values), "mean" (the score), and the entries of `medfed.metrics.summary.interval_entries`.
        """

    @abstractmethod
    def patient_values(self, rows: Sequence[dict], key: str) -> dict[str, float]:
        """Return one value per patient, whose mean is the score and whose spread gives the standard error of the score.

        Args:
            rows: the rows of one run, site and structure.
            key: name of the column, such as "dice" or "hd95_mm".

        Returns:
            Dictionary from the patient to the value, as stored; empty if there is no score, or no interval of it.
        """

    @abstractmethod
    def patient_scores(self, rows: Sequence[dict], key: str, absent: float | None = None) -> dict[tuple, float]:
        """Return the score of each patient on its own, averaged over the runs, for paired comparisons.

        Args:
            rows: the rows of one or more runs.
            key: name of the column, such as "dice".
            absent: score of a structure that neither the true nor the predicted mask contains; None leaves it out.

        Returns:
            The score by (site, patient), followed by the structure for segmentation. Empty if the column has no score
            of single patients, such as the AUROC.
        """

    @abstractmethod
    def check(self, rows: Sequence[dict]) -> None:
        """Check that every row is valid, and that no image, or structure of an image, has two rows.

        Args:
            rows: all rows of a run. A row is a dict with the results of one image, or of one structure of one image.

        Raises:
            ValueError: if a row is not valid, or if there are two rows of the same image or structure.
        """

    @abstractmethod
    def write_cases(self, path: str | Path, rows: Sequence[dict]) -> None:
        """Write rows to the file `cases.csv`, sorted, so that the same rows always give the same file.

        Args:
            path: the file.
            rows: all rows of a run. A row is a dict with the results of one image, or of one structure of one image.
        """

    @abstractmethod
    def read_cases(self, path: str | Path) -> list[dict]:
        """Read the rows of a run from a CSV file that `write_cases` wrote.

        Args:
            path: the file.

        Returns:
            One dict per line, by column name: the results of one image, or of one structure of one image.

        Raises:
            UserError: if the file has another header, or a line that is not valid.
        """

    @abstractmethod
    def overall_score(self, rows: Sequence[dict], key: str) -> float | None:
        """Compute the score that a comparison table shows for one site and structure.

        Args:
            rows: all rows of the site and structure. A row is a dict with the results of one image.
            key: name of the column, such as "dice" or "hd95_mm".

        Returns:
            The score as stored: a fraction is in [0, 1], a distance is in the unit of the column. None if the score is
            not defined for these rows.
        """

    @abstractmethod
    def has_value(self, rows: Sequence[dict], key: str) -> bool:
        """Return whether the column `key` has a score for these rows, so that a comparison table shows the column.

        Args:
            rows: rows of one structure. A row is a dict with the results of one image.
            key: name of the column, such as "dice" or "hd95_mm".
        """

    @abstractmethod
    def paired_test(self, rows_a: Sequence[dict], rows_b: Sequence[dict], key: str) -> dict:
        """Compare two methods by a paired Wilcoxon signed-rank test.

        The values of a patient are first averaged over the seeds and the patient's images. For classification, each
        patient then gives one pair of values. For segmentation, each structure of a patient gives one pair of values.

        Args:
            rows_a: rows of `cases.csv` of the first method, from the runs of all seeds.
            rows_b: rows of `cases.csv` of the second method, from the runs of all seeds.
            key: name of the column to compare, such as "dice".

        Returns:
            A dict with at least these keys:

            * "p": the two-sided p value; None if there is none.
            * "n": the number of pairs; None if the metric has no value for each patient, such as the AUROC of a site.
            * "reason": a sentence that says why there is no p value; None if there is one.
        """

    @abstractmethod
    def is_failure(self, row: Mapping) -> bool:
        """Return whether a comparison table counts a row of `cases.csv` as a failure.

        For segmentation, a failure is a structure that is in the true mask while the predicted mask is empty. For
        classification, a failure is a wrongly classified image.

        Args:
            row: the results of one image, or of one structure of one image.
        """

    @abstractmethod
    def is_case(self, row: Mapping) -> bool:
        """Return whether a row of `cases.csv` counts in the number of cases of a comparison table.

        For segmentation, a row counts if the true mask or the predicted mask contains the structure. For
        classification, every row (one image) counts.

        Args:
            row: the results of one image, or of one structure of one image.
        """

    @abstractmethod
    def has_cross(self, row: Mapping) -> bool:
        """Return whether box plots draw the value of a row of `cases.csv` as a cross instead of a point.

        For segmentation, a cross marks a structure that the true mask or the predicted mask lacks. For classification,
        there are no crosses.

        Args:
            row: the results of one image, or of one structure of one image.
        """

    @abstractmethod
    def box_plot_values(self, rows: Sequence[Mapping]) -> list[BoxPlotValue]:
        """Return one entry for each quantity that box plots show, such as Dice and HD95.

        Args:
            rows: the rows of `cases.csv` that are drawn. The rows decide the unit of a distance: it is mm only if all
                rows have a value in mm.
        """
