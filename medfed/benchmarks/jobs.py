"""A round of several sites and a comparison of runs in several processes, against one process"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from medfed.benchmarks.harness import Row, median_ms
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


def measure(jobs: int | None = None, cases: int = 6, size: int = 80, repeats: int = 2, n_runs: int = 4) -> list[Row]:
    """`jobs` None takes what the cores and the memory allow, but at least 2. The comparison is timed once, with the
    start of the processes; the round without it. The limit is smaller than `jobs` if the images or the runs cannot be
    divided equally."""
    jobs = jobs or max(2, max_processes(threads=1))
    with tempfile.TemporaryDirectory() as folder, deterministic(threads=1):
        text = CONFIG.format(root=Path(folder) / "data", cases=cases, matrix=max(40, size), size=size)
        config = load_text(text, "benchmark.yaml")
        experiments = [build_experiment(config, None, quiet=True, jobs=n) for n in (jobs, 1)]
        try:
            train = [partial(_train_sites, experiment) for experiment in experiments]
            ms, peer_ms = median_ms(train, repeats, time.perf_counter)
        finally:
            for experiment in experiments:
                experiment.engine.close()
        n_images = {site.name: len(site.training) for site in experiments[1].sites}
        largest = max(sum(n_images[site] for site in group) for group in balanced_groups(n_images, jobs))
        runs_ms, peer_runs_ms = [_compare_ms(config, Path(folder) / f"runs_{n}", n, n_runs) for n in (jobs, 1)]
    name, limit = "1 process", sum(n_images.values()) / largest
    return [
        Row(f"a round of 5 sites, {jobs} processes", name, ms, peer_ms, largest_ratio=limit),
        Row(f"{n_runs} runs, {jobs} processes", name, runs_ms, peer_runs_ms, largest_ratio=n_runs / -(-n_runs // jobs)),
    ]


def _train_sites(experiment: Experiment) -> None:
    request = Message(Kind.TRAIN, experiment.start.weights, {}, {"round": 1, "last": 0})
    experiment.engine.exchange(Kind.TRAIN, dict.fromkeys(experiment.engine.sites(), request))


def _compare_ms(config: Config, folder: Path, jobs: int, n_runs: int) -> float:
    """Milliseconds of some runs with different unseen sites."""
    folds = [
        Fold(
            ComparisonRow("fedavg"),
            replace(config, federation=replace(config.federation, unseen_site=site)),
            RunFolder(folder / site),
        )
        for site in SITES[:n_runs]
    ]
    start = time.perf_counter()
    run_folds(folds, jobs, quiet=True)
    return 1000 * (time.perf_counter() - start)
