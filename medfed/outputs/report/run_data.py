"""Reading the folders of finished runs and comparisons for the page."""

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
from medfed.outputs.report.ledger_totals import Ledger, read_ledger
from medfed.outputs.run_folder import RunFolder, read_unadapted
from medfed.outputs.tables.cost import Cost, costs_by_row
from medfed.outputs.tables.run_table import failure_rows, score_rows, weights_notes
from medfed.results import comparison as results
from medfed.results.notes import did_not_learn
from medfed.results.row import (
    BASELINE,
    SENT,
    ComparisonRow,
    read_row,
)
from medfed.results.scores import read_scores
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import Scoring

ROLES = ("seen", "validation", "unseen")


@dataclass(frozen=True)
class Run:
    """The content of a finished run's folder, as the report uses it."""

    path: Path
    method: str  # name in tables; runs of the same method, unseen site and seed have different ones
    summary: dict[str, Any]
    config: dict[str, Any]
    config_text: str
    scores: pd.DataFrame  # of `cases.csv`
    history: list[dict]  # of `history.csv`
    ledger: Ledger
    row: ComparisonRow  # identifies the run in its comparison
    scoring: Scoring
    unadapted: pd.DataFrame | None = None  # at the unseen site, without the adaptation to its images

    @property
    def transductive_by(self) -> list[str]:
        """Names of the techniques that used unlabelled test images, such as "tent"."""
        return self.summary.get("transductive_by", [])

    @property
    def data_label(self) -> str:
        """ "PHANTOM data" or "REAL data"."""
        return "PHANTOM data" if self.summary["data"] == "phantom" else f"{self.summary['data'].upper()} data"

    @property
    def title(self) -> str:
        """For example "elcfs, unseen BMC, seed 0"."""
        return f"{self.method}, unseen {self.unseen}, seed {self.summary['seed']}"

    @property
    def row_label(self) -> str:
        """The name of the run's row in tables of several methods; the models of `local` share one row."""
        return self.row.label if self.row.trained_at else self.method

    @property
    def is_federated(self) -> bool:
        """False for the rows `pooled` and `local`."""
        return self.row.arrangement not in SENT

    @property
    def unseen(self) -> str:
        """The name of the unseen site, or "none" if no site was left out."""
        return self.summary.get("unseen_site") or "none"


@dataclass(frozen=True)
class Comparison:
    """Runs that the report compares with each other, those of the baseline first."""

    name: str  # the comparison's folder, or another name
    runs: tuple[Run, ...]
    table: results.Comparison | None  # None if the runs cannot share a table
    is_a_folder: bool  # False for runs that the user named one by one
    why_no_table: str | None = None  # why the runs cannot share a table, such as "a run left no site out"
    n_unfinished: int = 0
    baseline: str = BASELINE

    @property
    def drawn(self) -> list[Run]:
        """The runs that charts and figures show: all but those of `local`, which has several models for each fold."""
        return [run for run in self.runs if not run.row.trained_at] or list(self.runs)

    def costs(self) -> dict[str, Cost]:
        """Mean cost of each row; empty for runs that were named one by one, as they may be from several machines."""
        if not self.is_a_folder:
            return {}
        return costs_by_row([(run.row, run.unseen, run.summary["seed"], RunFolder(run.path)) for run in self.runs])


def read_run(path: Path) -> Run:
    """Read the folder of a finished run; UserError if the run is unfinished or a file damaged."""
    folder = RunFolder(path)
    if not folder.is_finished():
        resume = f"python -m medfed.train {path / 'config.yaml'} --out {path} --resume"
        raise UserError(f"{path}: the run is not finished; resume it with {resume}")
    folder.check()
    for name in ("cases.csv", "ledger.csv", "model.safetensors"):
        if not (path / name).is_file():
            raise UserError(f"{path / name}: the file is missing; copy the whole folder of the run")
    summary, text = _summary(folder), read(path / "config.yaml")
    config = parse(text, str(path / "config.yaml"))
    if not isinstance(config, dict):
        raise UserError(f"{path / 'config.yaml'}: expected blocks of settings; copy the whole folder of the run again")
    scoring = scoring_of(summary, path / "summary.json")
    ledger = read_ledger(path, sites=summary.get("source_sites") or ())
    scores = read_scores(path / "cases.csv", scoring.metrics)
    row = read_row(path, summary["method"])
    unadapted = read_unadapted(path, summary, scoring)
    return Run(path, row.run_label, summary, config, text, scores, folder.history(), ledger, row, scoring, unadapted)


def _summary(folder: RunFolder) -> dict[str, Any]:
    """Read `summary.json`; UserError if it is not the complete summary of a run."""
    path, summary = folder.path / "summary.json", folder.read_summary()
    needed = ("data", "method", "selection", "scores", "seed")
    if missing := [key for key in needed if key not in summary]:
        raise UserError(
            f"{path}: the key '{missing[0]}' is missing, so this is not the summary of a run; name the folder of a run"
        )
    with damaged_file(path):
        scoring = scoring_of(summary, path)
        did_not_learn(summary), score_rows(scoring, summary), failure_rows(scoring, summary), weights_notes(summary)
    return summary


def read_runs(paths: Iterable[Path], progress: Callable = iter) -> tuple[list[Run], list[Comparison]]:
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
    comparisons = [_comparison(str(path), runs[path], folder) for path, folder in folders.items()]
    single = _with_distinct_names([run for path in paths if path not in folders for run in runs[path]])
    if len({(run.method, run.unseen, run.summary["seed"]) for run in single}) > 1:
        comparisons.append(_comparison("the runs of this page", single))
    return single, comparisons


def _with_distinct_names(runs: list[Run]) -> list[Run]:
    """Add the folder to the name of runs that have the same method, unseen site and seed."""
    n = Counter((run.method, run.unseen, run.summary["seed"]) for run in runs)
    ambiguous = {method for (method, _, _), count in n.items() if count > 1}
    return [replace(run, method=f"{run.method} ({run.path})") if run.method in ambiguous else run for run in runs]


def _comparison(name: str, runs: list[Run], folder: ComparisonFolder | None = None) -> Comparison:
    """Compare runs; if they cannot be compared, the result has the reason instead of tables."""
    baseline = folder.baseline if folder else BASELINE
    runs = sorted(runs, key=lambda run: run.method != run.row.baseline_label(baseline))
    table, why = None, None
    left_out = folder.note() if folder else ""
    try:
        if len({run.summary.get("dataset") for run in runs}) > 1:
            raise UserError("the runs are of several data sets")
        if any(run.summary.get("unseen_site") is None for run in runs):
            raise UserError("a run left no site out")
        planned = {*folder.planned.values()} if folder else set()
        scored = [results.ScoredRun.of(_named_row(run), run.summary, run.scores, run.unadapted) for run in runs]
        table = results.compare_runs(scored, baseline, planned, [left_out] * bool(left_out))
    except UserError as error:
        why = str(error)
    n_unfinished = len(folder.planned) - len(runs) if folder else 0
    return Comparison(name, tuple(runs), table, folder is not None, why, n_unfinished, baseline)


def _named_row(run: Run) -> ComparisonRow:
    """The row of a run, with the name that tells runs of the same method apart."""
    return run.row if run.row_label == run.row.label else replace(run.row, method=run.row_label, varied=())


def structures_of(runs: Iterable[Run], role: str | None = None) -> list[str]:
    """Structures that have scores at the sites of a role (None: all), in the order of the rows; ["all"] for
    classification."""
    tables = [run.scores for run in runs]
    return list(dict.fromkeys(name for own in tables for name in own.structure[(own.role == role) | (role is None)]))
