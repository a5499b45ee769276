import json

from medfed import benchmark
from medfed.benchmarks.exchange import exchange_table, time_exchange
from medfed.benchmarks.federated_round import round_table, time_round
from medfed.benchmarks.methods import METHODS, methods_table, time_methods
from medfed.benchmarks.styles import styles_table, time_styles


def test_the_three_forms_of_the_exchange_agree_and_ratios_are_of_the_times():
    """Never the speed itself: a busy machine may be slow."""
    found = time_exchange(size=128, n_images=2, n_sites=2, repeats=1)
    assert found["max_relative_difference"] < 1e-5
    assert found["times_faster_than_numpy"] == found["numpy_ms"] / found["medfed_ms"]
    assert "largest relative difference" in exchange_table(found)


def test_a_round_is_timed_against_the_bare_loops():
    found = time_round(size=32, n_sites=2, n_images=8, repeats=1)
    assert found["federated_over_bare"] == found["federated_s"] / found["bare_s"] > 0
    assert "the federation adds" in round_table(found)


def test_the_program_prints_the_tables_and_saves_the_numbers(tmp_path, monkeypatch, capsys):
    small = {"exchange": lambda: time_exchange(64, 1, 1, 1), "round": lambda: time_round(32, 1, 4, 1)}
    tables = {"exchange": exchange_table, "round": round_table}
    monkeypatch.setattr(benchmark, "MEASURES", [(name, small[name], tables[name]) for name in small])
    assert benchmark.main(["--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "frequency exchange" in said and "one round of FedAvg" in said
    assert set(json.loads((tmp_path / "out" / "benchmark.json").read_text())) == {"exchange", "round"}


def test_both_ways_to_apply_many_styles_give_the_same_images():
    found = time_styles(size=16, n_images=2, n_styles=2, repeats=1)
    assert found["max_difference"] < 1e-6
    assert found["times_faster"] == found["again_ms"] / found["once_ms"] > 0
    assert "images per second" in styles_table(found)


def test_every_method_is_timed_on_the_same_round_as_fedavg():
    found = time_methods(depth=10, size=40, n_images=8, repeats=1, batch_size=4, width=4)
    assert set(found["train_s"]) == set(METHODS) and found["over_fedavg"]["fedavg"] == 1
    assert found["share_s"]["fedavg"] == 0 < found["share_s"]["fisc"]
    assert "style only" in methods_table(found)
