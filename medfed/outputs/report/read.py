"""Read the folders of finished runs and comparisons for the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from medfed.config.strict_yaml import parse, read
from medfed.core.errors import UserError
from medfed.outputs.comparison_folder import ComparisonFolder
from medfed.outputs.run_folder import RunFolder
from medfed.results.comparison import Comparison, ScoredRun, compare_runs
from medfed.results.notes import NOT_STATED
from medfed.results.row import BASELINE, SENT, ComparisonRow, read_row
from medfed.results.scores import read_scores
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import Scoring


@dataclass(frozen=True, eq=False)
class ReportRun:
    """The content of a finished run's folder, as the report uses it."""

    folder: RunFolder
    summary: dict[str, Any]
    config: dict[str, Any]
    config_text: str
    scores: pd.DataFrame  # of `cases.csv`
    row: ComparisonRow  # identifies the run in its comparison
    scoring: Scoring

    @property
    def data_label(self) -> str:
        data = self.summary["data"]
        return f"Data {data}" if data == NOT_STATED else f"{data.upper()} data"

    @property
    def title(self) -> str:
        """For example "elcfs, unseen BMC, seed 0"."""
        return f"{self.row.run_label}, unseen {self.unseen}, seed {self.summary['seed']}"

    @property
    def unseen(self) -> str:
        return self.summary.get("unseen_site") or "none"

    @property
    def is_federated(self) -> bool:
        return self.row.arrangement not in SENT


@dataclass(frozen=True)
class RunGroup:
    """Runs that the page compares, those of the baseline first."""

    name: str
    runs: Sequence[ReportRun]
    baseline: str
    is_folder: bool  # False for runs that the user named one by one
    n_unfinished: int = 0
    table: Comparison | None = None
    why_no_table: str = ""

    @property
    def drawn(self) -> Sequence[ReportRun]:
        """The runs that figures show: all but those of `local`, which has several models for each fold."""
        return [run for run in self.runs if not run.row.trained_at] or self.runs


def read_run(path: Path) -> ReportRun:
    """Read the folder of a finished run; UserError if the run is unfinished or a file differs from its checksum."""
    folder = RunFolder(path)
    folder.check_finished()
    text = read(path / "config.yaml")
    config = parse(text, str(path / "config.yaml"))
    summary, scores = folder.read_summary(), read_scores(path / "cases.csv")
    return ReportRun(folder, summary, config, text, scores, read_row(path, summary["method"]), scoring_of(summary))


def read_runs(paths: Iterable[Path], progress: Callable = iter) -> tuple[list[ReportRun], list[RunGroup]]:
    """Return the single runs and the comparisons; single runs that differ form one more comparison."""
    paths = list(dict.fromkeys(paths))
    folders = {path: ComparisonFolder.read(path) for path in paths if not (path / "config.yaml").is_file()}
    finished = {path: folders[path].finished() if path in folders else [path] for path in paths}
    for path in paths:
        if not finished[path]:
            raise UserError(
                f"{path}: neither a run nor a comparison with a finished run; name a folder that medfed.train or "
                "medfed.evaluate wrote"
            )
    runs = {run: read_run(run) for run in progress([run for path in paths for run in finished[path]])}
    groups = [_group(str(path), [runs[run] for run in finished[path]], folder) for path, folder in folders.items()]
    single = _with_distinct_names([runs[path] for path in paths if path not in folders])
    if len({_key(run) for run in single}) > 1:
        groups.append(_group("the runs of this page", single))
    return single, groups


def _key(run: ReportRun) -> tuple[str, str, int]:
    return run.row.run_label, run.unseen, run.summary["seed"]


def _with_distinct_names(runs: list[ReportRun]) -> list[ReportRun]:
    """Add the folder to the method of runs that have the same method, unseen site and seed."""
    n = Counter(map(_key, runs))
    return [
        replace(run, row=replace(run.row, method=f"{run.row.method}@{run.folder.path}")) if n[_key(run)] > 1 else run
        for run in runs
    ]


def _group(name: str, runs: Sequence[ReportRun], folder: ComparisonFolder | None = None) -> RunGroup:
    """Compare runs; if they cannot be compared, the result has the reason instead of tables."""
    baseline = folder.baseline if folder else BASELINE
    runs = sorted(runs, key=lambda run: run.row.run_label != run.row.baseline_label(baseline))
    planned = folder.planned if folder else {}
    group = RunGroup(name, runs, baseline, folder is not None, max(0, len(planned) - len(runs)))
    try:
        if len({run.summary.get("dataset") for run in runs}) > 1:
            raise UserError("the runs are of several data sets")
        if any(run.unseen == "none" for run in runs):
            raise UserError("a run left no site out")
        notes = [note] if folder and (note := folder.note()) else []
        scored = [ScoredRun.of(run.row, run.summary, run.scores) for run in runs]
        return replace(group, table=compare_runs(scored, baseline, {*planned.values()}, notes))
    except UserError as error:
        return replace(group, why_no_table=str(error))
