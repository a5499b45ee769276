"""Do the runs of a comparison: in this process, one after another, or several at the same time in worker processes."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from medfed.cli.program import machine_sentence
from medfed.cli.progress import OnTraining, ProgressBar
from medfed.config.schema import Config, load_text, resolved
from medfed.core.device import pick_device
from medfed.core.errors import UserError, WorkerBug
from medfed.core.machine import max_processes
from medfed.engines.parts.worker_process import (
    WorkerFailed,
    WorkerProcess,
    can_be_imported,
    check_can_be_imported,
    n_workers_worth_it,
)
from medfed.experiments.cohorts import ONE_SITE
from medfed.experiments.grid import Fold
from medfed.experiments.resume import check_run_folder
from medfed.experiments.run import run
from medfed.outputs.run_folder import RunFolder, RunFolderLockedError
from medfed.outputs.tables.comparison_row import ComparisonRow

LOG = "run.log"  # in the folder of a run that a worker process does
DONE, LOCKED = b"done", b"locked"  # replies of a worker
MAX_SHOWN = 3  # runs whose progress is shown


@dataclass
class Unfinished:
    """The runs that were skipped because another process locks their folder, and why others failed, by `name_of`."""

    locked: list[Fold] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def run_folds(folds: Sequence[Fold], jobs: int | None, quiet: bool) -> Unfinished:
    """Train and score all runs of a comparison that are not finished; a run that fails does not stop the others.

    Args:
        jobs: how many runs work at the same time. With 1, all work in this process. With more, each run has a worker
            process that writes to `run.log` in the run's folder; more jobs than runs divide the sites of a run. None
            starts worker processes after the first run if they are expected to save time, but not on a GPU.
    """
    for fold in folds:
        check_run_folder(fold.folder, resolved(fold.config), resume=_was_started(fold.folder))
    unfinished = Unfinished()
    left = [fold for fold in folds if not fold.folder.is_finished()]
    done = [fold for fold in folds if fold.folder.is_finished()]
    for fold in left[:1]:
        fold.folder.create()  # refuses a folder that cannot be written once, and not for each run
    for fold in done:  # only checks that the files are complete
        _do_here(fold, jobs, quiet, unfinished)
    n_jobs = 1 if len(left) == 1 else jobs or 1
    with _Progress(len(folds), len(done), quiet, position=1) as progress:  # below the progress of the run
        while left and n_jobs == 1:
            began = time.thread_time()
            with progress.running(fold := left.pop(0)):
                _do_here(fold, jobs, quiet, unfinished)
            if jobs is None and left:
                rest_s = (time.thread_time() - began) * len(left)
                n_jobs = n_workers_worth_it(rest_s, 0.0, lambda: _max_jobs(left))
    if left:
        with _Progress(len(folds), len(folds) - len(left), quiet, position=0) as progress:
            _do_in_workers(left, n_jobs, progress, unfinished)
    order = list(map(name_of, folds))
    unfinished.failed = dict(sorted(unfinished.failed.items(), key=lambda failure: order.index(failure[0])))
    return unfinished


def name_of(fold: Fold) -> str:
    """Return the name of a run for the progress bar and messages, such as "elcfs, unseen UCL, seed 3"."""
    return f"{fold.row.run_label}, unseen {fold.site}, seed {fold.config.seed}"


def do_run(
    row: ComparisonRow,
    config: Config,
    folder: RunFolder,
    jobs: int | None,
    quiet: bool,
    on_training: OnTraining | None = None,
) -> None:
    """Train and score one run of a comparison, or continue it; `jobs` counts the sites that work at the same time."""
    with folder.locked():
        check_run_folder(folder, resolved(config), resume=_was_started(folder))
        row.write(folder)
        run(config, folder, quiet, jobs, on_training, ONE_SITE if row.trained_at else "")


def _do_here(fold: Fold, jobs: int | None, quiet: bool, unfinished: Unfinished) -> None:
    """Do one run in this process; if it is locked or fails, add it to `unfinished`."""
    try:
        do_run(fold.row, fold.config, fold.folder, jobs, quiet)
    except RunFolderLockedError:
        unfinished.locked.append(fold)
    except BrokenPipeError:  # the program that reads the output has ended
        raise
    except Exception as error:  # the next run can still be done
        unfinished.failed[name_of(fold)] = _reason(error)


def _reason(error: Exception) -> str:
    """Return why a run failed, in one sentence, and print the traceback if it is a bug."""
    if isinstance(error, UserError | WorkerBug):
        return str(error)
    if sentence := machine_sentence(error):
        return sentence
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"


def _was_started(folder: RunFolder) -> bool:
    return (folder.path / "config.yaml").is_file()


def _max_jobs(folds: Sequence[Fold]) -> int:
    """Return how many processes cores and free memory allow; 1 if the runs must stay in this process."""
    configs = [fold.config for fold in folds]
    on_gpu = any(pick_device(config.device).type != "cpu" for config in configs)
    if on_gpu or not all(can_be_imported(config.yaml) for config in configs):
        return 1
    return max_processes(max(config.training.threads for config in configs))


def _do_in_workers(folds: Sequence[Fold], n_jobs: int, progress: _Progress, unfinished: Unfinished) -> None:
    """Do runs in worker processes, each one run after another; add locked and failed runs to `unfinished`."""
    for fold in folds:
        check_can_be_imported(fold.config.yaml, n_jobs)
    n_workers = min(n_jobs, len(folds))
    left: queue.SimpleQueue[Fold] = queue.SimpleQueue()
    for fold in folds:
        left.put(fold)
    stopping = threading.Event()

    def work() -> None:
        """Do runs in one worker process until none is left."""
        process = WorkerProcess({"directory": os.getcwd()})
        try:
            while not stopping.is_set():
                with progress.running(fold := left.get_nowait()):
                    _do_in_worker(process, fold, n_jobs // n_workers, progress, unfinished, stopping.is_set)
        except queue.Empty:
            return
        finally:
            process.close()

    with ThreadPoolExecutor(n_workers) as pool:
        try:
            for job in as_completed([pool.submit(work) for _ in range(n_workers)]):
                job.result()
        except BaseException as error:
            stopping.set()  # ends the processes, for which leaving the `with` block waits
            if not isinstance(error, KeyboardInterrupt):
                raise
            out = os.path.commonpath([fold.folder.path for fold in folds])
            raise type(error)(
                f"stopped; {out} holds all finished runs and rounds. Continue with the same arguments and --resume"
            ) from error


def _do_in_worker(
    process: WorkerProcess,
    fold: Fold,
    jobs: int,
    progress: _Progress,
    unfinished: Unfinished,
    stopped: Callable[[], bool],
) -> None:
    """Let a worker process do a run; a process that has ended is started again."""
    header = {
        "row": asdict(fold.row),
        "config": fold.config.yaml,
        "source": fold.config.source,
        "notices": fold.config.notices,
        "folder": str(fold.folder.path.resolve()),
        "jobs": jobs,
    }
    process.on_step = lambda name, n_done, n_total: progress.advance(fold, n_done / n_total)
    try:
        for reply in process.ask(header, stopped=stopped):
            if reply == LOCKED:
                unfinished.locked.append(fold)
    except WorkerFailed as error:
        more = f"; see {fold.folder.path / LOG}, and use a smaller --jobs if memory ran out"
        unfinished.failed[name_of(fold)] = f"{error}{'' if error.reported else more}"


def serve_run(header: Mapping[str, Any], on_training: OnTraining) -> bytes:
    """Do one run in this worker process, and append all that it prints from now on to `run.log` in the run's folder.
    The reply is DONE or LOCKED. UserError if the run failed; the traceback of a bug is then in `run.log`."""
    folder = RunFolder(Path(header["folder"]))
    folder.path.mkdir(parents=True, exist_ok=True)
    with open(folder.path / LOG, "ab") as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())  # also for the processes that the run starts
    row = ComparisonRow.of(header["row"])
    try:
        config = replace(load_text(header["config"], header["source"]), notices=tuple(header["notices"]))
        do_run(row, config, folder, header["jobs"], quiet=False, on_training=on_training)
    except RunFolderLockedError:
        return LOCKED
    except Exception as error:  # the next run can still be done
        reason = _reason(error)
        print(reason, file=sys.stderr)
        is_complete = isinstance(error, UserError) or machine_sentence(error) is not None
        raise UserError(reason if is_complete else f"{reason}; see {folder.path / LOG}") from error
    return DONE


class _Progress(AbstractContextManager):
    """A progress bar that counts runs and names the running ones; `position` is its line in the terminal, from 0."""

    def __init__(self, n_runs: int, n_done: int, quiet: bool, position: int) -> None:
        self._n_runs, self._n_done, self._lock = n_runs, n_done, threading.Lock()
        self._shares: dict[str, float] = {}
        # Finished runs count as `initial`, so the time left is that of the others.
        self._bar = ProgressBar(
            total=n_runs,
            initial=n_done,
            disable=quiet,
            position=position,
            bar_format="{desc} {percentage:3.0f}%|{bar}| {remaining} left",
        )

    @contextmanager
    def running(self, fold: Fold) -> Iterator[None]:
        """Show a run while the context is active; it counts as done afterwards."""
        self.advance(fold, 0.0)
        yield
        with self._lock:
            self._shares.pop(name_of(fold))
            self._n_done += 1
            self._show()

    def advance(self, fold: Fold, share: float) -> None:
        """Show which share of a run's trainings is done, in [0, 1]."""
        with self._lock:
            self._shares[name_of(fold)] = share
            self._show()

    def _show(self) -> None:
        shown = [f"{name} {share:.0%}" if share else name for name, share in self._shares.items()]
        more = [f"{len(shown) - MAX_SHOWN} more"] if len(shown) > MAX_SHOWN else []
        text = "; ".join([*shown[:MAX_SHOWN], *more])
        self._bar.set_description_str(f"{self._n_done}/{self._n_runs} runs: {text}", refresh=False)
        self._bar.update(self._n_done + sum(self._shares.values()) - self._bar.n)

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
