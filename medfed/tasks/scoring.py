"""Base class of the results of a task: its metrics, its rows, its summary, and the texts of tables and figures.

It needs neither images nor a network, so that a report can be made from the folder of a run (`medfed.tasks.factory`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from medfed.metrics.metric import Column, Metric, all_columns, check_declarations, describe_metric, metric_columns
from medfed.metrics.summary import N_BOOTSTRAP, Group, summarise

ALL = "all"  # name of the only structure in the results of a task without structures
RUN_TABLE, COMPARISON, CARD, CASES, GAP = VIEWS = ("run_table", "comparison", "card", "cases", "gap")


@dataclass(frozen=True)
class BoxPlotValue:
    """A quantity that box plots show for every case.

    Args:
        title: label of the axis.
        limits: (low, high) of the axis; None adapts the axis to the values.
        value: returns the value of a row; None if the row has none.
        is_main: whether it is the task's first metric or one that the config lists.
        is_distance: whether the values of failed cases are far above all others, so that the axis needs a break.
    """

    title: str
    limits: tuple[float, float] | None
    value: Callable[[Mapping], float | None]
    is_main: bool = False
    is_distance: bool = False


@dataclass(frozen=True)
class Scoring(ABC):
    """Base class that defines how the results of a task are computed, stored and shown.

    Results are rows: plain dicts, one per image or per structure of a patient, as the subclass describes them.

    Args:
        metrics: all metrics of the run, in the order of the columns in files. The first is the task's main metric.
        chosen: names of the metrics listed in the config key `evaluation.metrics`; every table and figure shows them.
    """

    metrics: tuple[Metric, ...]
    chosen: tuple[str, ...] = ()

    task: ClassVar[str]  # name of the task
    views: ClassVar[Mapping[str, tuple[str, ...]]]  # names of the metrics that each view of VIEWS shows
    other_columns: ClassVar[tuple[str, ...]]  # columns of cases.csv that are not metrics
    counts: ClassVar[tuple[str, ...]]  # counts in each group of the summary; the first is the number of scored cases
    has_structures: ClassVar[bool]  # whether there are scores for several structures of a case
    leading_counts: ClassVar[tuple[tuple[str, str], ...]]  # (count, heading) of columns before the scores of a run
    trailing_counts: ClassVar[tuple[tuple[str, str], ...]]  # (count, heading) of columns after the scores of a run
    spread_over_sites: ClassVar[bool]  # whether the standard deviation is over sites instead of cases
    shows_interval: ClassVar[bool]  # whether the table of a run shows an interval instead of a standard deviation
    spread_note: ClassVar[str]  # explains the spread in the table of a run
    interval_note: ClassVar[str]  # explains intervals and spread in the report
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
        """Columns of all metrics, one for each unit of a metric, in the order of the columns in files."""
        return all_columns(self.metrics)

    def metrics_in(self, view: str) -> tuple[Metric, ...]:
        """Return the metrics that a view shows: its own, then those listed in the config.

        Args:
            view: one of VIEWS.
        """
        by_name = {metric.name: metric for metric in self.metrics}
        return tuple(by_name[name] for name in dict.fromkeys((*self.views[view], *self.chosen)) if name in by_name)

    def columns_in(self, view: str) -> tuple[Column, ...]:
        """Return the columns of the metrics that a view (one of VIEWS) shows, one for each unit of a metric."""
        return tuple(column for metric in self.metrics_in(view) for column in metric_columns(metric))

    def notes_in(self, view: str) -> tuple[str, ...]:
        """Return the notes below the table of a view (one of VIEWS): those of its metrics, then those of the task."""
        return tuple(dict.fromkeys((*(metric.note for metric in self.metrics_in(view) if metric.note), *self.notes)))

    def summarise(self, rows: Sequence[dict], rng_seed: int) -> dict[str, Any]:
        """Return the part of `summary.json` with the scores (`medfed.metrics.summary.summarise`) and their metrics.

        Args:
            rows: all rows of a run.
            rng_seed: seed of the bootstrap samples.

        Raises:
            ValueError: if a row is invalid or a case has two rows.
        """
        self.check(rows)
        scores = summarise(
            rows,
            self.structure_of,
            lambda group, names: self.score_group(group, (rng_seed, *names)),
            self.counts,
            [column.key for column in self.columns],
            [column.key for column in self.columns_in(GAP)],
            self.spread_over_sites,
        )
        declared = {
            "metrics": [describe_metric(metric) for metric in self.metrics],
            "chosen_metrics": list(self.chosen),
        }
        return {"task": self.task, **declared, "n_resamples": N_BOOTSTRAP, "rng_seed": rng_seed, **scores}

    def summary_notes(self, summary: Mapping[str, Any]) -> list[str]:
        """Return the sentences below the table of one run.

        Args:
            summary: content of the run's `summary.json`.
        """
        return [f"{note}." for note in self.notes_in(RUN_TABLE)]

    @abstractmethod
    def structure_of(self, row: Mapping) -> str:
        """Return the name of the structure that a row belongs to; ALL if the task has no structures."""

    @abstractmethod
    def score_group(self, rows: list[dict], seed: tuple) -> Group:
        """Compute counts and scores of a group of rows: those of one role, site and structure.

        Args:
            rows: rows of the group.
            seed: name of the random stream of the bootstrap samples.
        """

    @abstractmethod
    def check(self, rows: Sequence[dict]) -> None:
        """Raise ValueError if a row is invalid or a case has two rows."""

    @abstractmethod
    def write_cases(self, path: str | Path, rows: Sequence[dict]) -> None:
        """Write the rows to a CSV file, sorted, so that the same rows always give the same file."""

    @abstractmethod
    def read_cases(self, path: str | Path) -> list[dict]:
        """Read the rows from a CSV file that `write_cases` wrote.

        Raises:
            UserError: if the file has another header, or a line that is not valid.
        """

    @abstractmethod
    def overall_score(self, rows: Sequence[dict], key: str) -> float | None:
        """Compute the score of one site and structure.

        Args:
            rows: all rows of the site and structure.
            key: name of a column.

        Returns:
            The score in the unit of the column; None if it is not defined.
        """

    @abstractmethod
    def has_value(self, rows: Sequence[dict], key: str) -> bool:
        """Return whether at least one of the rows has a score in the column `key`."""

    @abstractmethod
    def paired_test(self, rows_a: Sequence[dict], rows_b: Sequence[dict], key: str) -> dict:
        """Compare two methods by a paired test over patients, averaged over seeds
        (`medfed.metrics.summary.wilcoxon_test`).

        Args:
            rows_a: rows of the first method, of all seeds.
            rows_b: rows of the second method, of all seeds.
            key: name of the column to compare.

        Returns:
            "p" (the p value, or None), "n" (the number of pairs) and, without a p value, "reason".
        """

    @abstractmethod
    def is_failure(self, row: Mapping) -> bool:
        """Return whether a comparison counts the row as a failure."""

    @abstractmethod
    def is_case(self, row: Mapping) -> bool:
        """Return whether a comparison counts the row as a case."""

    @abstractmethod
    def has_cross(self, row: Mapping) -> bool:
        """Return whether box plots mark the row with a cross."""

    @abstractmethod
    def box_plot_values(self, rows: Sequence[Mapping]) -> list[BoxPlotValue]:
        """Return the quantities that box plots show for the given rows."""
