"""Read the folders of finished runs and comparisons for the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from medfed.config.strict_yaml import parse, read
from medfed.core.errors import UserError
from medfed.outputs.comparison_folder import ComparisonFolder
from medfed.outputs.damaged_file import damaged_file
from medfed.outputs.run_folder import RunFolder, read_unadapted
from medfed.outputs.tables.run_table import weights_notes
from medfed.results.comparison import Comparison, ScoredRun, compare_runs
from medfed.results.notes import did_not_learn
from medfed.results.row import BASELINE, SENT, ComparisonRow, read_row
from medfed.results.run_scores import run_scores_of
from medfed.results.scores import read_scores
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import Scoring


@dataclass(frozen=True)
class Run:
    """The content of a finished run's folder, as the report uses it."""

    folder: RunFolder
    method: str  # name in tables; runs of the same method, unseen site and seed have different ones
    summary: dict[str, Any]
    config: dict[str, Any]
    config_text: str
    scores: pd.DataFrame  # of `cases.csv`
    row: ComparisonRow  # identifies the run in its comparison
    scoring: Scoring
    unadapted: pd.DataFrame | None  # scores of the unseen site without the adaptation to its images

    @property
    def data_label(self) -> str:
        return f"{self.summary['data'].upper()} data"

    @property
    def title(self) -> str:
        """For example "elcfs, unseen BMC, seed 0"."""
        return f"{self.method}, unseen {self.unseen}, seed {self.summary['seed']}"

    @property
    def unseen(self) -> str:
        return self.summary.get("unseen_site") or "none"

    @property
    def row_label(self) -> str:
        """The name of the run's row in tables of several methods; the models of `local` share one row."""
        return self.row.label if self.row.trained_at else self.method

    @property
    def is_federated(self) -> bool:
        return self.row.arrangement not in SENT


@dataclass(frozen=True)
class RunGroup:
    """Runs that the page compares, those of the baseline first."""

    name: str
    runs: tuple[Run, ...]
    table: Comparison | None
    is_folder: bool  # False for runs that the user named one by one
    why_no_table: str = ""
    n_unfinished: int = 0
    baseline: str = BASELINE

    @property
    def drawn(self) -> list[Run]:
        """The runs that figures show: all but those of `local`, which has several models for each fold."""
        return [run for run in self.runs if not run.row.trained_at] or list(self.runs)


def read_run(path: Path) -> Run:
    """Read the folder of a finished run; UserError if the run is unfinished or a file damaged."""
    folder = RunFolder(path)
    if not folder.is_finished():
        resume = f"python -m medfed.train {path / 'config.yaml'} --out {path} --resume"
        raise UserError(f"{path}: the run is not finished; resume it with {resume}")
    folder.check()
    text = read(path / "config.yaml")
    config = parse(text, str(path / "config.yaml"))
    with damaged_file(path / "summary.json") as file:
        summary = folder.read_summary()
        summary["data"], summary["seed"], summary["selection"], run_scores_of(summary)
        did_not_learn(summary), weights_notes(summary)  # these raise an error if a block lacks a value
        scoring, row = scoring_of(summary, file), read_row(path, summary["method"])
    scores = read_scores(path / "cases.csv", scoring.metrics)
    unadapted = read_unadapted(path, summary, scoring)
    return Run(folder, row.run_label, summary, config, text, scores, row, scoring, unadapted)


def read_runs(paths: Iterable[Path], progress: Callable = iter) -> tuple[list[Run], list[RunGroup]]:
    """Read each of these folders once; return the single runs, and the comparisons. Single runs that differ in method,
    unseen site or seed form one more comparison."""
    paths = list(dict.fromkeys(paths))
    folders = {path: ComparisonFolder.read(path) for path in paths if not (path / "config.yaml").is_file()}
    finished = {path: folder.finished() for path, folder in folders.items()}
    for path, folder in folders.items():
        if not (started := folder.started()):
            raise UserError(
                f"{path}: the folder is neither a run nor a comparison; name a folder that medfed.train or "
                "medfed.evaluate wrote"
            )
        if not finished[path]:
            raise UserError(
                f"{path}: none of its {len(started)} runs is finished; wait for medfed.evaluate, or "
                "start it again with --resume"
            )
    jobs = [(path, folder) for path in paths for folder in (finished[path] if path in folders else [path])]
    runs: dict[Path, list[Run]] = {path: [] for path in paths}
    for path, folder in progress(jobs):
        runs[path].append(read_run(folder))
    groups = [_group(str(path), runs[path], folder) for path, folder in folders.items()]
    single = _with_distinct_names([run for path in paths if path not in folders for run in runs[path]])
    if len({(run.method, run.unseen, run.summary["seed"]) for run in single}) > 1:
        groups.append(_group("the runs of this page", single))
    return single, groups


def _with_distinct_names(runs: list[Run]) -> list[Run]:
    """Add the folder to the name of runs that have the same method, unseen site and seed."""
    n = Counter((run.method, run.unseen, run.summary["seed"]) for run in runs)
    ambiguous = {method for (method, _, _), count in n.items() if count > 1}
    return [
        replace(run, method=f"{run.method} ({run.folder.path})") if run.method in ambiguous else run for run in runs
    ]


def _group(name: str, runs: list[Run], folder: ComparisonFolder | None = None) -> RunGroup:
    """Compare runs; if they cannot be compared, the result has the reason instead of tables."""
    baseline = folder.baseline if folder else BASELINE
    runs = sorted(runs, key=lambda run: run.method != run.row.baseline_label(baseline))
    n_unfinished = len(folder.planned) - len(runs) if folder else 0
    notes = [note] if folder and (note := folder.note()) else []
    try:
        if len({run.summary.get("dataset") for run in runs}) > 1:
            raise UserError("the runs are of several data sets")
        if any(run.unseen == "none" for run in runs):
            raise UserError("a run left no site out")
        scored = [ScoredRun.of(_named_row(run), run.summary, run.scores, run.unadapted) for run in runs]
        table = compare_runs(scored, baseline, {*folder.planned.values()} if folder else set(), notes)
    except UserError as error:
        return RunGroup(name, tuple(runs), None, folder is not None, str(error), n_unfinished, baseline)
    return RunGroup(name, tuple(runs), table, folder is not None, "", n_unfinished, baseline)


def _named_row(run: Run) -> ComparisonRow:
    """The row of a run, with the name that tells runs of the same method apart."""
    return run.row if run.row_label == run.row.label else replace(run.row, method=run.row_label, varied=())
