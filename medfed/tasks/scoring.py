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
        limits: (low, high) of the axis; None adapts the axis to the values.
        value: returns the quantity from a row of `cases.csv`; None if the row has no value.
        is_main: whether it is the task's first metric, or one of `evaluation.metrics`.
    """

    title: str
    limits: tuple[float, float] | None
    value: Callable[[Mapping], float | None]
    is_main: bool = False


@dataclass(frozen=True)
class Scoring(ABC):
    """Base class of the results of a task: how scores are computed from rows, stored in files, and described in tables.

    A row is a dict with the results of one image (classification), or of one structure of one image (segmentation). A
    key is the name of a column, such as "dice" or "hd95_mm".

    Args:
        metrics: all metrics of the run, in the order of the columns in files. The first is the task's main metric.
        chosen: names of the metrics in `evaluation.metrics`, and of those that `evaluation.also_on` adds; every table
            and figure shows them.
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
    figures: ClassVar[tuple[str, ...]]  # names of the figures that `medfed.experiments.figures` draws

    def __post_init__(self) -> None:
        check_declarations(self.metrics, (*self.other_columns, *self.counts, "n_by_class"))

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns of scores, in the order of the files; a column is a metric in one unit. A distance has two
        columns, in mm and in percent of the image's diagonal; any other metric has one."""
        return all_columns(self.metrics)

    def metrics_in(self, view: str) -> tuple[Metric, ...]:
        """The metrics that one kind of output shows: those of the task, then those of `evaluation.metrics`, if
        computed.

        `view` is "run_table" (one run), "comparison" (several methods), "card" (the model card of a bundle), "cases"
        (box plots of single cases) or "gap" (the difference between seen and unseen sites).
        """
        by_name = {metric.name: metric for metric in self.metrics}
        return tuple(by_name[name] for name in dict.fromkeys((*self.views[view], *self.chosen)) if name in by_name)

    def columns_in(self, view: str) -> tuple[Column, ...]:
        """The columns (a metric in one unit) that one kind of output shows; `view` as in `metrics_in`."""
        return tuple(column for metric in self.metrics_in(view) for column in metric_columns(metric))

    def notes_in(self, view: str) -> tuple[str, ...]:
        """Notes of the metrics that a table shows (`metrics_in`), such as the definition of HD95, then of the task; no
        full stops."""
        return tuple(dict.fromkeys((*(metric.note for metric in self.metrics_in(view) if metric.note), *self.notes)))

    def summarise(self, rows: Sequence[dict]) -> dict[str, Any]:
        """Compute all scores of a run, as the part of `summary.json` that describes them; ValueError as `check`.

        It has "task" (name), "metrics" (name, unit, limits ... of each), "chosen_metrics" (names), "interval_method"
        (in words), and the scores "seen", "unseen", "gap" and, with a validation site, "validation"
        (`medfed.metrics.summary.summarise`).
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
        """The sentences to print below the table of one run, about its cases."""
        return []

    def failure_shares(self, rows: Sequence[Mapping]) -> dict[str, Share | None]:
        """Shares of patients for whom the segmentation of a structure failed, by a name in `failure_titles`; None
        without patients.

        `rows` are of one structure, of one or several models and sites. Empty for a task without masks.
        """
        return {}

    @property
    def failure_titles(self) -> dict[str, str]:
        """The heading of each kind of failure, for example "Dice < 0.7"."""
        return {}

    def with_settings(self, summary: Mapping[str, Any]) -> Scoring:
        """This object with the settings of a run's summary; TypeError or ValueError if one is not valid."""
        return self

    @abstractmethod
    def structure_of(self, row: Mapping) -> str:
        """The structure of a row, such as "prostate"; "all" for classification."""

    @abstractmethod
    def score_group(self, rows: list[dict]) -> Group:
        """Compute counts and scores from the rows of one site and one structure.

        The counts are by name, such as "n" (cases) and "n_patients". Each metric has a dict with "n" (values), "mean"
        (the score), and the entries of `medfed.metrics.summary.interval_entries`.
        """

    @abstractmethod
    def patient_scores(self, rows: Sequence[dict], key: str, absent: float | None = None) -> dict[tuple, float]:
        """The score of each patient on its own, averaged over the runs, for paired comparisons.

        Keys are (site, patient), followed by the structure for segmentation. `absent` is the score of a structure that
        neither the true nor the predicted mask contains; None leaves it out. Empty if the column has no score of single
        patients, such as the AUROC.
        """

    @abstractmethod
    def check(self, rows: Sequence[dict]) -> None:
        """ValueError if a row is not valid, or if there are two rows of the same image or structure."""

    @abstractmethod
    def write_cases(self, path: str | Path, rows: Sequence[dict]) -> None:
        """Write `cases.csv`, sorted, so that the same rows always give the same file."""

    @abstractmethod
    def read_cases(self, path: str | Path) -> list[dict]:
        """Read what `write_cases` wrote; UserError for another header or a line that is not valid."""

    @abstractmethod
    def is_failure(self, row: Mapping) -> bool:
        """Whether a comparison table counts a row as a failure: a missed structure, or a wrongly classified image."""

    @abstractmethod
    def is_case(self, row: Mapping) -> bool:
        """Whether a row counts in the number of cases of a comparison table."""

    @abstractmethod
    def has_cross(self, row: Mapping) -> bool:
        """Whether box plots draw the value of a row as a cross instead of a point."""

    @abstractmethod
    def box_plot_values(self, rows: Sequence[Mapping]) -> list[BoxPlotValue]:
        """The quantities that box plots of these rows show; a distance is in mm only if all rows have a value in mm."""
