import json

import pytest
import torch
from forked_workers import fork_workers

from medfed import benchmark
from medfed.benchmarks import measurements
from medfed.benchmarks.measurements import Row, table
from medfed.config.schema import load_text

TINY_CONFIG = """
    data: {name: prostate, root: unused, image_size: 32}
    network: {name: medfed.testing.small_unet.SmallUNet}
    method: {name: elcfs, min_patients: 1}
    training: {batch_size: 2}
"""


def test_a_ratio_is_the_peers_number_divided_by_medfeds_and_the_table_names_the_peer():
    row = Row("an average", "NumPy", 2.0, 5.0)
    assert row.ratio == 2.5
    assert all(text in table("Title", [row]) for text in ("Title", "an average", "2.50", "NumPy"))


def test_functions_are_timed_in_turn_and_the_first_time_is_not_counted():
    clock = iter([0, 9, 0, 9, 0, 1, 0, 3, 0, 1, 0, 3])
    calls = []
    functions = [lambda name=name: calls.append(name) for name in "ab"]
    assert measurements.median_ms(functions, 2, lambda: next(clock)) == [1000, 3000]
    assert "".join(calls) == "ababab"


@pytest.mark.parametrize(
    "measure",
    [
        lambda: measurements.exchange(size=128, n_images=2, n_sites=2, repeats=1),
        lambda: measurements.hd95(shape=(96, 64, 14), repeats=1),
        lambda: measurements.one_round(size=32, cases=4, repeats=1),
    ],
    ids=["exchange", "hd95", "one_round"],
)
def test_the_peer_does_the_same_work(measure):
    """The exchange and HD95 raise ValueError otherwise. Never the speed itself: a busy machine may be slow."""
    rows = measure()
    assert rows and all(row.medfed > 0 and row.peer > 0 for row in rows)


@pytest.mark.slow
def test_a_round_and_runs_are_timed_in_one_process_and_over_the_cores(monkeypatch):
    fork_workers(monkeypatch)
    monkeypatch.setattr(measurements, "run_folds", lambda folds, jobs, quiet: None)
    of_round, of_runs = measurements.jobs(cases=4, size=32, repeats=1, n_runs=2)
    assert of_round.ratio > 0 and of_runs.work.startswith("2 runs")


def test_the_program_prints_the_tables_and_saves_the_numbers_of_the_named_measurements(tmp_path, monkeypatch, capsys):
    def measure(n_jobs):
        """Several processes"""
        return [Row(f"{n_jobs} processes", "1 process", 1.0, 2.0)]

    monkeypatch.setattr(measurements, "jobs", measure)
    assert benchmark.main(["--only", "jobs", "--jobs", "3", "--out", str(tmp_path / "out")]) == 0
    assert "jobs: Several processes" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "out" / "benchmark.json").read_text())["jobs"]
    assert (row["ratio"], row["work"]) == (2.0, "3 processes")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_gpu_its_table_says_so():
    assert table("GPU", measurements.gpu()).endswith("not measured, because PyTorch found no CUDA GPU")


def test_a_step_of_a_paper_config_is_timed_in_both_precisions(monkeypatch):
    monkeypatch.setattr(measurements, "load", lambda path: load_text(TINY_CONFIG, path.name))
    rows = measurements.gpu({"prostate_paper": 0}, repeats=1, n_steps=1, device="cpu")
    assert [(row.work.split(", ")[1], row.unit) for row in rows] == [
        ("fedavg", "ms"),
        ("fedavg", "GiB"),
        ("elcfs", "ms"),
        ("elcfs", "GiB"),
    ]
    assert all(row.medfed > 0 and row.peer > 0 for row in rows if row.unit == "ms")
