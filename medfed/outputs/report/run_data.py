"""Finished runs as the page needs them: read once, labelled so that no two look alike."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from medfed.config.strict_yaml import parse, read
from medfed.core.errors import UserError
from medfed.outputs.report.ledger_totals import Ledger, read_ledger
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables.comparison import Table, build_table
from medfed.outputs.tables.comparison_row import ROW_FILE, ComparisonRow, read_row, row_from_folder_name
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import Scoring

FOLDS = "*/unseen_*/seed_*"  # where medfed.evaluate keeps the runs of a comparison
ROLES = ("seen", "validation", "unseen")


@dataclass(frozen=True)
class Run:
    """A finished run: what its folder tells, and the label of its row as the page shows it."""

    path: Path
    method: str
    summary: dict[str, Any]
    config: dict[str, Any]
    config_text: str
    rows: list[dict]
    history: list[dict]
    ledger: Ledger
    row: ComparisonRow
    scoring: Scoring

    @property
    def transductive_by(self) -> list[str]:
        """What looked at test images while predicting."""
        return self.summary.get("transductive_by") or ["tent"] * bool(self.summary.get("transductive"))

    @property
    def data_label(self) -> str:
        """What every caption ends with."""
        return "PHANTOM data" if self.summary["data"] == "phantom" else f"{self.summary['data'].upper()} data"

    @property
    def title(self) -> str:
        return f"{self.method}, unseen {self.unseen}, seed {self.summary['seed']}"

    @property
    def unseen(self) -> str:
        return self.summary.get("unseen_site") or "none"


@dataclass(frozen=True)
class Comparison:
    """Runs that share a table; one table a role.

    is_a_folder: whether medfed.evaluate made it, or it is of the runs that were named one by one.
    why_no_table: a clause, where they cannot share one.
    """

    name: str
    runs: tuple[Run, ...]
    tables: tuple[tuple[str, Table], ...]
    is_a_folder: bool
    why_no_table: str | None = None
    n_unfinished: int = 0


def read_run(path: Path, row: ComparisonRow | None = None) -> Run:
    """Read a run's folder.

    Args:
        row: where the folder does not tell its row; None is that of its method alone.

    Raises:
        UserError: if it is not finished, or a file of it is missing or damaged.
    """
    folder = RunFolder(path)
    if not folder.is_finished():
        resume = f"python -m medfed.train {path / 'config.yaml'} --out {path} --resume"
        raise UserError(f"{path}: the run is not finished; go on with {resume}")
    for name in ("cases.csv", "ledger.csv", "model.safetensors"):
        if not (path / name).is_file():
            raise UserError(f"{path / name}: is missing; copy the whole folder of the run")
    found, text = _summary(path / "summary.json"), read(path / "config.yaml")
    config = parse(text, str(path / "config.yaml"))
    if not isinstance(config, dict):
        raise UserError(f"{path / 'config.yaml'}: expected blocks of keys and values; copy the whole folder of the run")
    scoring = scoring_of(found, path / "summary.json")
    ledger = read_ledger(path, sites=found.get("source_sites") or ())
    rows = scoring.read_cases(path / "cases.csv")
    row = row or read_row(path, found["method"])
    return Run(path, row.label, found, config, text, rows, folder.history(), ledger, row, scoring)


def _summary(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not JSON ({error}); copy the run again from where it was made") from error
    needed = ("data", "method", "selection", "seen", "unseen", "seed")
    if not isinstance(found, dict) or (missing := [key for key in needed if key not in found]):
        what = "an object" if not isinstance(found, dict) else f"'{missing[0]}'"
        raise UserError(f"{path}: {what} was expected and is not there; is this the summary of a run?")
    return found


def folds_of(path: Path) -> tuple[list[Path], int]:
    """The finished runs of a comparison's folder, and how many there are that are not finished."""
    found = sorted(fold for fold in path.glob(FOLDS) if (fold / "config.yaml").is_file())
    finished = [fold for fold in found if (fold / "summary.json").is_file()]
    return finished, len(found) - len(finished)


def read_runs(paths: Iterable[Path], progress: Callable = iter) -> tuple[list[Run], list[Comparison]]:
    """The runs named one by one, and the comparisons: those named, and one of the runs if they can share a table.

    Args:
        progress: wraps the list of runs to read.
    """
    paths = list(dict.fromkeys(paths))
    folds = {path: folds_of(path) for path in paths if not (path / "config.yaml").is_file()}
    for path, (finished, n_unfinished) in folds.items():
        if not finished and not n_unfinished:
            raise UserError(f"{path}: is neither a run nor a comparison; name a folder that medfed.train or "
                            "medfed.evaluate wrote")
        if not finished:
            raise UserError(f"{path}: none of its {n_unfinished} runs is finished; wait for medfed.evaluate, or go on "
                            "with its --resume")
    jobs = [(path, fold) for path in paths for fold in (folds[path][0] if path in folds else [path])]
    read: dict[Path, list[Run]] = {path: [] for path in paths}
    for path, fold in progress(jobs):
        read[path].append(read_run(fold, _older_row(path, fold) if path in folds else None))
    comparisons = [_comparison(str(path), read[path], True, n) for path, (_, n) in folds.items()]
    single = _told_apart([run for path in paths if path not in folds for run in read[path]])
    if len({(run.method, run.unseen, run.summary["seed"]) for run in single}) > 1:
        comparisons.append(_comparison("the runs of this page", single, False))
    return single, comparisons


def _older_row(comparison: Path, fold: Path) -> ComparisonRow | None:
    """Of a fold that has no file to tell its row."""
    return None if (fold / ROW_FILE).is_file() else row_from_folder_name(fold.relative_to(comparison).parts[0])


def _told_apart(runs: list[Run]) -> list[Run]:
    """Two runs of one method, unseen site and seed also show their folders."""
    n = Counter((run.method, run.unseen, run.summary["seed"]) for run in runs)
    twice = {method for (method, _, _), count in n.items() if count > 1}
    return [replace(run, method=f"{run.method} ({run.path})") if run.method in twice else run for run in runs]


def _comparison(name: str, runs: list[Run], is_a_folder: bool, n_unfinished: int = 0) -> Comparison:
    runs = sorted(runs, key=lambda run: run.method != run.row.baseline)
    roles = ["unseen"] + ["validation"] * all(run.summary.get("validation_site") for run in runs)
    tables, why = [], None
    try:
        if len({run.summary.get("dataset") for run in runs}) > 1:
            raise UserError("the runs are of several data sets")
        if any(run.summary.get("unseen_site") is None for run in runs):
            raise UserError("a run left no site out")
        tables = [(role, _table(runs, role)) for role in roles]
    except UserError as error:
        why = str(error)
    return Comparison(name, tuple(runs), tuple(tables), is_a_folder, why, n_unfinished)


def _table(runs: list[Run], role: str) -> Table:
    results = [
        {
            "method": run.method,
            "baseline": run.row.baseline,
            f"{role}_site": run.summary[f"{role}_site"],
            "seed": run.summary["seed"],
            "rows": [row for row in run.rows if row["role"] == role],
            "selection": run.summary["selection"],
            "data": run.summary["data"],
            "summary": run.summary,
            "transductive_by": run.transductive_by,
        }
        for run in runs
    ]
    return build_table(results, structures_of(runs, role), role=role)


def structures_of(runs: Iterable[Run], role: str | None = None) -> list[str]:
    """The structures of the runs' rows, of one role or of all, in the order in which they come."""
    rows = ((run.scoring, row) for run in runs for row in run.rows if role in (None, row["role"]))
    return list(dict.fromkeys(scoring.structure_of(row) for scoring, row in rows))
