"""What a task declares of its results: metrics, rows, summary, and what tables and figures show.

It needs no images and no network, so that a report can be made of a run's folder alone (`medfed.tasks.factory`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from medfed.metrics.metric import Column, Metric, all_columns, check_declarations, describe_metric, metric_columns
from medfed.metrics.summary import N_BOOTSTRAP, Group, summarise

ALL = "all"  # the one structure of a task that has none
RUN_TABLE, COMPARISON, CARD, CASES, GAP = VIEWS = ("run_table", "comparison", "card", "cases", "gap")


@dataclass(frozen=True)
class BoxPlotValue:
    """What a box plot shows of every case: an axis, its limits (None: those of the values), and a row's value.

    is_main: whether it is the task's first metric, or one that the config chose.
    is_distance: whether failures are far above all other values.
    """

    title: str
    limits: tuple[float, float] | None
    value: Callable[[Mapping], float | None]
    is_main: bool = False
    is_distance: bool = False


@dataclass(frozen=True)
class Scoring(ABC):
    """The results of a task.

    Args:
        metrics: every metric of the run, in the order of the files. The first is the task's main metric.
        chosen: names of the metrics that `evaluation.metrics` asks for: every table and figure shows them.
    """

    metrics: tuple[Metric, ...]
    chosen: tuple[str, ...] = ()

    task: ClassVar[str]
    views: ClassVar[Mapping[str, tuple[str, ...]]]  # names of the metrics that each of VIEWS shows
    other_columns: ClassVar[tuple[str, ...]]  # of cases.csv, that are no metric
    counts: ClassVar[tuple[str, ...]]  # of a summary's group; the first is the number of scored cases
    has_structures: ClassVar[bool]
    leading_counts: ClassVar[tuple[tuple[str, str], ...]]  # (count, its head) in the table of a run, before the scores
    trailing_counts: ClassVar[tuple[tuple[str, str], ...]]  # and after them
    spread_over_sites: ClassVar[bool]
    shows_interval: ClassVar[bool]  # whether the table of a run shows an interval rather than a standard deviation
    spread_note: ClassVar[str]  # what it shows
    interval_note: ClassVar[str]  # what the report shows
    notes: ClassVar[tuple[str, ...]]  # sentences below every table, after those of the metrics
    score_description: ClassVar[str]  # what a cell of a comparison is a mean of
    failure_heading: ClassVar[str]  # the head of the column that counts failures
    missing_score_reason: ClassVar[str]  # why a cell may be empty
    tested_population: ClassVar[str]  # over whom a p value is
    figures: ClassVar[tuple[str, ...]]  # `medfed.experiments.figures` draws them

    def __post_init__(self) -> None:
        check_declarations(self.metrics, (*self.other_columns, *self.counts, "n_by_class"))

    @property
    def columns(self) -> tuple[Column, ...]:
        """Every metric in each of its units, in the order of the files."""
        return all_columns(self.metrics)

    def metrics_in(self, view: str) -> tuple[Metric, ...]:
        """The metrics of one of VIEWS, then those that the config chose."""
        by_name = {metric.name: metric for metric in self.metrics}
        return tuple(by_name[name] for name in dict.fromkeys((*self.views[view], *self.chosen)) if name in by_name)

    def columns_in(self, view: str) -> tuple[Column, ...]:
        """The metrics of a view in each of their units."""
        return tuple(column for metric in self.metrics_in(view) for column in metric_columns(metric))

    def notes_in(self, view: str) -> tuple[str, ...]:
        """The sentences below a table."""
        return tuple(dict.fromkeys((*(metric.note for metric in self.metrics_in(view) if metric.note), *self.notes)))

    def summarise(self, rows: Sequence[dict], rng_seed: int) -> dict[str, Any]:
        """The part of `summary.json` that holds scores (`medfed.metrics.summary.summarise`), and what they are.

        Raises:
            ValueError: for rows that are not as the task makes them, or a case scored twice.
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
        """Sentences on one run below its table."""
        return [f"{note}." for note in self.notes_in(RUN_TABLE)]

    @abstractmethod
    def structure_of(self, row: Mapping) -> str:
        """The structure of a row; ALL where the task has none."""

    @abstractmethod
    def score_group(self, rows: list[dict], seed: tuple) -> Group:
        """Counts and scores of the rows of one role, site and structure; `seed` names a random stream."""

    @abstractmethod
    def check(self, rows: Sequence[dict]) -> None:
        """Raise ValueError unless the rows are as the task makes them."""

    @abstractmethod
    def write_cases(self, path: str | Path, rows: Sequence[dict]) -> None:
        """Write the rows as CSV, sorted: the same rows give the same bytes."""

    @abstractmethod
    def read_cases(self, path: str | Path) -> list[dict]:
        """Read what `write_cases` wrote; UserError, with the line, for another file."""

    @abstractmethod
    def overall_score(self, rows: Sequence[dict], key: str) -> float | None:
        """A column over all rows of one site and structure, as stored; None where it is unknown."""

    @abstractmethod
    def has_value(self, rows: Sequence[dict], key: str) -> bool:
        """Whether any of the rows has a value of the column."""

    @abstractmethod
    def paired_test(self, rows_a: Sequence[dict], rows_b: Sequence[dict], key: str) -> dict:
        """The test of a column between two methods, all seeds together (`medfed.metrics.summary.signed_rank`)."""

    @abstractmethod
    def is_failure(self, row: Mapping) -> bool:
        """Whether a comparison counts the row as failed."""

    @abstractmethod
    def is_case(self, row: Mapping) -> bool:
        """Whether a comparison counts the row."""

    @abstractmethod
    def has_cross(self, row: Mapping) -> bool:
        """Whether box plots mark the row with a cross."""

    @abstractmethod
    def box_plot_values(self, rows: Sequence[Mapping]) -> list[BoxPlotValue]:
        """What box plots show of these rows."""
