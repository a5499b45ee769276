"""Do the runs of a comparison: in this process, one after another, or several at the same time in worker processes."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from medfed.cli.program import machine_sentence
from medfed.cli.progress import OnTraining, ProgressBar
from medfed.config.schema import load_text, resolved
from medfed.core.device import pick_device
from medfed.core.errors import UserError, WorkerBug
from medfed.core.machine import max_processes
from medfed.engines.parts.worker_pool import do_at_once
from medfed.engines.parts.worker_process import (
    WorkerFailed,
    WorkerProcess,
    can_be_imported,
    n_workers_worth_it,
)
from medfed.experiments.grid import Fold
from medfed.experiments.resume import LOG, check_new_run, check_resumed_run
from medfed.experiments.run import run, write_row
from medfed.outputs.run_folder import RunFolder, RunFolderLockedError
from medfed.results.row import row_of

LOCKED = "locked by another process"
MAX_SHOWN = 3  # runs whose progress is shown


def run_folds(folds: Sequence[Fold], jobs: int | None, quiet: bool) -> dict[str, str]:
    """Do all runs that are not finished; return why some are still not, by name: LOCKED, or why they failed.

    With more than one of `jobs`, each run has a worker process; more jobs than runs divide the sites of a run. None
    starts worker processes after the first run if they are expected to save time, but not on a GPU.
    """
    for fold in folds:
        if fold.was_started:
            check_resumed_run(fold.folder, resolved(fold.config))
        else:
            check_new_run(fold.folder)
    left = [fold for fold in folds if not fold.folder.is_finished()]
    for fold in folds:
        if fold.folder.is_finished():
            write_row(fold.folder, fold.row, fold.config)
    for fold in left[:1]:
        fold.folder.create()  # refuses a folder that cannot be written once, and not for each run
    reasons, n_jobs = dict[str, str](), 1 if len(left) == 1 else jobs or 1
    with closing(_Progress(len(folds), len(folds) - len(left), quiet, position=1)) as progress:  # below that of the run
        while left and n_jobs == 1:
            began, fold = time.thread_time(), left.pop(0)
            progress.show(fold.name, 0.0)
            reasons[fold.name] = do_run(fold, jobs, quiet)
            progress.end(fold.name)
            if jobs is None and left:
                rest_s = (time.thread_time() - began) * len(left)
                n_jobs = n_workers_worth_it(rest_s, 0.0, lambda: _max_jobs(left))
    if left:
        with closing(_Progress(len(folds), len(folds) - len(left), quiet, position=0)) as progress:
            reasons |= _do_in_workers(left, n_jobs, progress)
    return {fold.name: reasons[fold.name] for fold in folds if reasons.get(fold.name)}


def do_run(fold: Fold, jobs: int | None, quiet: bool, on_training: OnTraining | None = None) -> str:
    """Train and score a run, or continue it; return "" if it is finished, LOCKED, or why it failed."""
    try:
        run(fold.config, fold.folder, fold.was_started, False, quiet, jobs, on_training, fold.row)
    except RunFolderLockedError:
        return LOCKED
    except BrokenPipeError:  # the program that reads the output has ended
        raise
    except (UserError, WorkerBug) as error:
        return str(error)
    except Exception as error:  # the next run can still be done
        if sentence := machine_sentence(error):
            return sentence
        traceback.print_exception(error)
        return f"{type(error).__name__}: {error}"
    return ""


def _max_jobs(folds: Sequence[Fold]) -> int:
    """Return how many processes cores and free memory allow; 1 if the runs must stay in this process."""
    configs = [fold.config for fold in folds]
    on_gpu = any(pick_device(config.device).type != "cpu" for config in configs)
    if on_gpu or not all(can_be_imported(config.yaml) for config in configs):
        return 1
    return max_processes(max(config.training.threads for config in configs))


def _do_in_workers(folds: Sequence[Fold], n_jobs: int, progress: _Progress) -> dict[str, str]:
    """Do runs in worker processes, each one run after another; return what `do_run` returns, by the run's name."""
    n_workers = min(n_jobs, len(folds))
    processes = [WorkerProcess({"directory": os.getcwd()}) for _ in range(n_workers)]
    headers = {  # before the threads start: a process that is forked meanwhile would inherit the lock of `yaml`
        fold.name: {
            "row": asdict(fold.row),
            "config": fold.config.yaml,
            "source": fold.config.source,
            "notices": fold.config.notices,
            "folder": str(fold.folder.path.resolve()),
            "jobs": n_jobs // n_workers,
        }
        for fold in folds
    }
    idle, reasons, stopping = list(processes), dict[str, str](), threading.Event()

    def work(fold: Fold) -> None:
        process = idle.pop()
        process.on_step = lambda name, n_done, n_total: progress.show(fold.name, n_done / n_total)
        progress.show(fold.name, 0.0)
        try:
            (reply,) = process.ask(headers[fold.name], stopped=stopping.is_set)
            reasons[fold.name] = reply.decode()
        except WorkerFailed as error:
            reasons[fold.name] = f"{error}; see {fold.folder.path / LOG}, and use a smaller --jobs if memory ran out"
        progress.end(fold.name)
        idle.append(process)

    try:
        do_at_once(n_workers, work, folds, stopping.set)
    except KeyboardInterrupt as error:
        out = os.path.commonpath([fold.folder.path for fold in folds])
        raise KeyboardInterrupt(
            f"stopped; {out} holds all finished runs and rounds. Continue with the same arguments and --resume"
        ) from error
    finally:
        for process in processes:
            process.close()
    return reasons


def serve_run(header: Mapping[str, Any], on_training: OnTraining) -> bytes:
    """Do one run in this worker process, whose output goes to `run.log`; the reply is what `do_run` returns."""
    folder = RunFolder(Path(header["folder"]))
    folder.create()
    with open(folder.path / LOG, "ab") as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())  # also for the processes that the run starts
    config = replace(load_text(header["config"], header["source"]), notices=tuple(header["notices"]))
    fold = Fold(row_of(header["row"]), config, folder)
    reason = do_run(fold, header["jobs"], False, on_training)
    if reason in ("", LOCKED):
        return reason.encode()
    print(reason, file=sys.stderr, flush=True)
    return f"{reason}; see {folder.path / LOG}".encode()


class _Progress:
    """A progress bar that counts runs and names the running ones; `position` is its line in the terminal, from 0."""

    def __init__(self, n_runs: int, n_done: int, quiet: bool, position: int) -> None:
        self._n_runs, self._n_done, self._lock = n_runs, n_done, threading.Lock()
        self._shares: dict[str, float] = {}  # of a running run's trainings that are done, by the run's name
        # Finished runs count as `initial`, so the time left is that of the others.
        bar_format = "{desc} {percentage:3.0f}%|{bar}| {remaining} left"
        self._bar = ProgressBar(total=n_runs, initial=n_done, disable=quiet, position=position, bar_format=bar_format)
        self.close = self._bar.close

    def show(self, name: str, share: float) -> None:
        with self._lock:
            self._shares[name] = share
            self._update()

    def end(self, name: str) -> None:
        with self._lock:
            del self._shares[name]
            self._n_done += 1
            self._update()

    def _update(self) -> None:
        shown = [f"{name} {share:.0%}" if share else name for name, share in self._shares.items()]
        text = "; ".join(shown[:MAX_SHOWN])
        self._bar.set_description_str(f"{self._n_done}/{self._n_runs} runs: {text}", refresh=False)
        self._bar.update(self._n_done + sum(self._shares.values()) - self._bar.n)
