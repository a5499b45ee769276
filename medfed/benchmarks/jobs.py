"""Time of the same work in one process and in several (`--jobs`): a round of several sites, and a comparison of runs.

The work can be faster at most by the number of processes. The limit is lower if the images or the runs cannot be
divided equally among the processes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from medfed.config.schema import Config, load_text
from medfed.core.determinism import deterministic
from medfed.core.machine import max_processes
from medfed.engines.parts.worker_pool import balanced_groups
from medfed.experiments.grid import Fold
from medfed.experiments.run_folds import run_folds
from medfed.experiments.setup import Experiment, build_experiment
from medfed.federation.message import Kind, Message
from medfed.outputs.run_folder import RunFolder
from medfed.results.row import ComparisonRow

SITES = ("BIDMC", "BMC", "HK", "I2CVB", "RUNMC", "UCL")
CONFIG = """
data: {{name: prostate_phantom, root: {root}, cases_per_site: {cases}, matrix: {matrix}, image_size: {size}}}
network: {{name: unet, features: [16, 16, 32, 64, 128, 16]}}
method: {{name: fedavg}}
training: {{learning_rate: 0.003, batch_size: 4}}
federation: {{unseen_site: UCL, rounds: 1}}
"""  # network, images and batches of configs/prostate.yaml


def time_jobs(
    jobs: int | None = None, cases: int = 6, size: int = 80, repeats: int = 2, n_runs: int = 4
) -> dict[str, float | int]:
    """Time one round of five sites and a comparison of `n_runs` runs, in one process and in several processes.

    `jobs` None takes what the cores and the memory allow, but at least 2. The comparison is timed once, with the start
    of the processes; the round `repeats` times, without it.

    Returns:
        `round_1_s` and `round_s`, the median seconds in one and in `jobs` processes; `round_times_faster`, their ratio;
        `round_limit`, its largest possible value for this division of the sites; and the same four of `runs`.
    """
    jobs = jobs or max(2, max_processes(threads=1))
    with tempfile.TemporaryDirectory() as folder, deterministic(threads=1):
        text = CONFIG.format(root=Path(folder) / "data", cases=cases, matrix=max(40, size), size=size)
        config = load_text(text, "benchmark.yaml")
        sites = _time_round(config, Path(folder), jobs, repeats)
        runs = {
            f"runs{name}_s": _time_runs(config, Path(folder) / f"runs{name}", n_jobs, n_runs)
            for name, n_jobs in (("_1", 1), ("", jobs))
        }
    return {
        **{"jobs": jobs, "size": size, "n_runs": n_runs, "repeats": repeats},
        **sites,
        **runs,
        "runs_times_faster": runs["runs_1_s"] / runs["runs_s"],
        "runs_limit": n_runs / -(-n_runs // jobs),
    }


def _time_round(config: Config, folder: Path, jobs: int, repeats: int) -> dict[str, float]:
    """Median seconds of a round with one process and with `jobs` processes, and how many times faster the latter is."""
    variants = {
        name: build_experiment(config, folder / f"sites{name}", True, n_jobs)
        for name, n_jobs in (("_1", 1), ("", jobs))
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    try:
        for number in range(repeats + 1):
            for name, experiment in variants.items():
                seconds[name] += [_time_exchange(experiment, number + 1)][: bool(number)]  # the first one warms up
    finally:
        for experiment in variants.values():
            experiment.engine.close()
    median = {f"round{name}_s": statistics.median(times) for name, times in seconds.items()}
    n_images = {site.name: len(site.training) for site in variants[""].sites}
    largest = max(sum(n_images[site] for site in group) for group in balanced_groups(n_images, jobs))
    times_faster = median["round_1_s"] / median["round_s"]
    return {**median, "round_times_faster": times_faster, "round_limit": sum(n_images.values()) / largest}


def _time_exchange(experiment: Experiment, number: int) -> float:
    """Seconds of the training of all sites."""
    request = Message(Kind.TRAIN, experiment.start.weights, {}, {"round": number, "last": 0})
    start = time.perf_counter()
    experiment.engine.exchange(Kind.TRAIN, dict.fromkeys(experiment.engine.sites(), request))
    return time.perf_counter() - start


def _time_runs(config: Config, folder: Path, jobs: int, n_runs: int) -> float:
    """Seconds of some runs with different unseen sites."""
    folds = [
        Fold(
            ComparisonRow("fedavg"),
            site,
            replace(config, federation=replace(config.federation, unseen_site=site)),
            RunFolder(folder / site),
        )
        for site in SITES[:n_runs]
    ]
    start = time.perf_counter()
    run_folds(folds, jobs, quiet=True)
    return time.perf_counter() - start


def jobs_table(result: dict[str, Any]) -> str:
    names = {
        "round": f"a round of 5 sites, median of {result['repeats']}",
        "runs": f"{result['n_runs']} runs with their start",
    }
    return "\n".join(
        [
            f"the same work in one process and in {result['jobs']} ({result['size']} x {result['size']}, one thread "
            "each)",
            f"  {'work':<34}{'1 job s':>9}{'jobs s':>9}{'faster':>9}{'limit':>9}",
            *(
                f"  {text:<34}{result[f'{name}_1_s']:>9.2f}{result[f'{name}_s']:>9.2f}"
                f"{result[f'{name}_times_faster']:>8.2f}x{result[f'{name}_limit']:>8.2f}x"
                for name, text in names.items()
            ),
        ]
    )
