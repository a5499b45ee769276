import json

import pytest
import torch
from forked_workers import fork_workers

from medfed import benchmark
from medfed.benchmarks import aggregation, gpu, images, measures
from medfed.benchmarks.aggregation import aggregation_table, time_aggregation
from medfed.benchmarks.elcfs_round import Case, elcfs_table, time_elcfs
from medfed.benchmarks.exchange import exchange_table, time_exchange
from medfed.benchmarks.federated_round import round_table, time_round
from medfed.benchmarks.gpu import VARIANTS, gpu_table, time_gpu
from medfed.benchmarks.jobs import jobs_table, time_jobs
from medfed.benchmarks.metrics import metrics_table, time_metrics
from medfed.benchmarks.networks import networks_table, time_networks
from medfed.cli.defaults import MEASUREMENTS
from medfed.config.schema import load_text
from medfed.methods.elcfs import ELCFS
from medfed.networks.densenet import DenseNetwork
from medfed.testing.small_unet import SmallUNet


def test_the_exchange_and_a_round_are_timed_against_other_ways_and_ratios_are_of_the_times():
    """Never the speed itself: a busy machine may be slow."""
    result = time_exchange(size=128, n_images=2, n_sites=2, repeats=1)
    assert result["max_relative_difference"] < 1e-5
    assert result["times_faster_than_numpy"] == result["numpy_ms"] / result["medfed_ms"]
    assert "largest relative difference" in exchange_table(result)
    result = time_round(size=32, n_sites=2, n_images=8, repeats=1)
    assert result["federated_over_bare"] == result["federated_s"] / result["bare_s"] > 0
    assert "the federation adds" in round_table(result)


def test_the_parts_of_a_round_of_elcfs_add_up_to_the_round():
    case = Case(32, SmallUNet(), 2, 4, ELCFS(alpha=0.1, ring_width=1))
    result = time_elcfs([case], repeats=1)
    (row,) = result["rows"]
    assert row["over_limit"] == pytest.approx(row["elcfs_ms"] / row["fedavg_ms"] / (8 / 3))
    assert sum(row["parts_s"].values()) == pytest.approx(row["round_s"])
    assert all(seconds > 0 for seconds in row["parts_s"].values())  # every part was found in the profile
    assert "exchange amplitudes" in elcfs_table(result)


@pytest.mark.slow
def test_a_round_and_runs_are_timed_in_one_process_and_over_the_cores(monkeypatch):
    fork_workers(monkeypatch)
    monkeypatch.setattr("medfed.benchmarks.jobs.run_folds", lambda folds, jobs, quiet: None)
    found = time_jobs(cases=4, size=32, repeats=1, n_runs=2)
    assert found["round_times_faster"] == found["round_1_s"] / found["round_s"] > 0
    assert found["runs_times_faster"] == found["runs_1_s"] / found["runs_s"] > 0
    assert 1 < found["round_limit"] <= found["jobs"] and found["runs_limit"] == 2
    assert "a round of 5 sites" in jobs_table(found)


def test_the_program_prints_the_tables_and_saves_the_numbers(tmp_path, monkeypatch, capsys):
    assert tuple(name for name, *_ in measures.MEASURES) == MEASUREMENTS
    small = {"exchange": lambda: time_exchange(64, 1, 1, 1), "round": lambda: time_round(32, 1, 4, 1)}
    tables = {"exchange": exchange_table, "round": round_table}
    monkeypatch.setattr(measures, "MEASURES", [(name, small[name], tables[name]) for name in small])
    assert benchmark.main(["--out", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    assert "frequency exchange" in output and "one round of FedAvg" in output
    assert set(json.loads((tmp_path / "out" / "benchmark.json").read_text())) == {"exchange", "round"}


def test_only_the_named_measurements_run_and_the_processes_are_those_of_the_row_of_jobs(monkeypatch, capsys):
    calls = []
    fakes = [("round", lambda: calls.append("round"), str), ("jobs", lambda jobs: calls.append(jobs), str)]
    monkeypatch.setattr(measures, "MEASURES", fakes)
    assert benchmark.main(["--only", "jobs", "--jobs", "3", "--quiet"]) == 0 and calls == [3]
    with pytest.raises(SystemExit):
        benchmark.main(["--jobs", "1"])
    assert "at least 2, got 1" in capsys.readouterr().err


def test_a_network_is_timed_with_both_layouts_of_its_feature_maps():
    result = time_networks([(DenseNetwork(8, 4, (2, 2)), 2)], sizes=(32, 64), repeats=1)
    assert [(row["network"], row["size"]) for row in result["rows"]] == [("DenseNetwork", 32), ("DenseNetwork", 64)]
    assert all(row["step_times_faster"] > 0 < row["predict_times_faster"] for row in result["rows"])
    assert len(networks_table(result).splitlines()) == 4


def test_the_timed_distances_equal_those_of_monai():
    result = time_metrics(shape=(96, 64, 14), repeats=1)
    assert result.keys() == {"prostate", "large", "tiny", "full"}
    for times in result.values():
        assert times["difference_mm"] < 1e-6 and times["times_faster"] == times["monai_ms"] / times["hd95_ms"]
    assert "MONAI HD95" in metrics_table(result)


def test_preparing_images_is_compared_with_pillow_and_with_the_size_of_the_result(monkeypatch):
    monkeypatch.setattr(images, "measure_in_new_process", lambda *_: {"prepared_mib": 2.0, "peak_mib": 3.0})
    result = images.time_images([("few", (3, 60, 40), 3, 16)], repeats=1)
    (row,) = result["rows"]
    assert row["times_prepared"] == 1.5 and abs(row["times_pillow"] - row["ours_ms"] / row["pillow_ms"]) < 1e-9
    assert "few" in images.images_table(result)
    # the memory of freed blocks that a process keeps may grow with the number of images
    (n_large,) = {n_images for _, (_, height, width), n_images, _ in images.SETS if height * width >= 12_000_000}
    assert n_large >= 5


def test_the_timed_averages_agree(monkeypatch):
    monkeypatch.setattr(aggregation, "measure_in_new_process", lambda *_: {"peak_models": 1.0})
    result = time_aggregation(n_sites=2, repeats=1)
    assert result["max_difference"] < 1e-6 and result["times_faster"] == result["numpy_s"] / result["medfed_s"]
    assert result["replies_mb"] == pytest.approx(2 * 28.1, abs=1) and "2 sites" in aggregation_table(result)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_gpu_its_table_says_so():
    assert gpu_table(time_gpu()).endswith("not measured, because PyTorch found no CUDA GPU")


def test_a_step_of_a_paper_config_is_timed_in_all_variants(monkeypatch):
    tiny = """
        data: {name: prostate, root: unused, image_size: 32}
        network: {name: medfed.testing.small_unet.SmallUNet}
        method: {name: elcfs, min_patients: 1}
        training: {batch_size: 2}
    """
    monkeypatch.setattr(gpu, "load", lambda path: load_text(tiny, path.name))
    result = time_gpu({"prostate_paper": (0, ("fedavg", "elcfs"))}, repeats=1, n_steps=1, device="cpu")
    assert [row["method"] for row in result["rows"]] == ["fedavg", "elcfs"]
    assert {(row["size"], row["batch_size"]) for row in result["rows"]} == {(32, 2)}
    assert all(list(row["step_ms"]) == list(VARIANTS) and min(row["step_ms"].values()) > 0 for row in result["rows"])
    assert len(gpu_table(result).splitlines()) == 5
