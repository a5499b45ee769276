import json

import pytest
import torch
from forked_workers import fork_workers

from medfed import benchmark
from medfed.benchmarks import NAMES, exchange, gpu, harness, images, jobs, metrics, one_round
from medfed.benchmarks.harness import Row, table
from medfed.config.schema import load_text

TINY_CONFIG = """
    data: {name: prostate, root: unused, image_size: 32}
    network: {name: medfed.testing.small_unet.SmallUNet}
    method: {name: elcfs, min_patients: 1}
    training: {batch_size: 2}
"""


def test_a_ratio_is_the_peers_number_divided_by_medfeds_and_the_table_names_the_peer():
    row = Row("an average", "NumPy", 2.0, 5.0, difference=1e-7)
    assert row.ratio == 2.5
    assert all(text in table("Title", [row]) for text in ("Title", "an average", "2.50", "NumPy", "1.0e-07"))


def test_functions_are_timed_in_turn_and_the_first_time_is_not_counted():
    clock = iter([0, 9, 0, 9, 0, 1, 0, 3, 0, 1, 0, 3])
    calls = []
    functions = [lambda name=name: calls.append(name) for name in "ab"]
    assert harness.median_ms(functions, 2, lambda: next(clock)) == [1000, 3000]
    assert "".join(calls) == "ababab"


@pytest.mark.parametrize(
    ("measure", "largest_difference"),
    [
        (lambda: exchange.measure(size=128, n_images=2, n_sites=2, repeats=1), 1e-5),
        (lambda: metrics.measure(shape=(96, 64, 14), repeats=1), 1e-6),
        (lambda: one_round.measure([(2, 32)], n_images=4, repeats=1), None),
        (lambda: images.measure([("few", (3, 60, 40), 3, 16)], repeats=1), None),
    ],
    ids=["exchange", "metrics", "one_round", "images"],
)
def test_the_peer_does_the_same_work(measure, largest_difference):
    """Never the speed itself: a busy machine may be slow."""
    rows = measure()
    assert rows and all(row.medfed > 0 and row.peer > 0 for row in rows)
    assert largest_difference is None or all(row.difference < largest_difference for row in rows)


@pytest.mark.slow
def test_a_round_and_runs_are_timed_in_one_process_and_over_the_cores(monkeypatch):
    fork_workers(monkeypatch)
    monkeypatch.setattr(jobs, "run_folds", lambda folds, jobs, quiet: None)
    of_round, of_runs = jobs.measure(cases=4, size=32, repeats=1, n_runs=2)
    assert of_round.ratio > 0 and 1 < of_round.largest_ratio <= 5 and of_runs.largest_ratio == 2


def test_the_program_prints_the_tables_and_saves_the_numbers_of_the_named_measurements(tmp_path, monkeypatch, capsys):
    n_jobs = []
    monkeypatch.setattr(jobs, "measure", lambda jobs: n_jobs.append(jobs) or [Row("a round", "1 process", 1.0, 2.0)])
    assert benchmark.main(["--only", "jobs", "--jobs", "3", "--out", str(tmp_path / "out")]) == 0 and n_jobs == [3]
    assert "1 process" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "out" / "benchmark.json").read_text())["jobs"]
    assert row["ratio"] == 2.0 and set(NAMES) > {"jobs"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_gpu_its_table_says_so():
    assert table("GPU", gpu.measure()).endswith("not measured, because PyTorch found no CUDA GPU")


def test_a_step_of_a_paper_config_is_timed_in_both_precisions(monkeypatch):
    monkeypatch.setattr(gpu, "load", lambda path: load_text(TINY_CONFIG, path.name))
    rows = gpu.measure({"prostate_paper": 0}, repeats=1, n_steps=1, device="cpu")
    assert [(row.work.split(", ")[1], row.unit) for row in rows] == [
        ("fedavg", "ms"),
        ("fedavg", "GiB"),
        ("elcfs", "ms"),
        ("elcfs", "GiB"),
    ]
    assert all(row.medfed > 0 and row.peer > 0 for row in rows if row.unit == "ms")
