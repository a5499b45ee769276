import pytest

from medfed.federation.message import State
from medfed.federation.rounds import Round
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables.cost import Cost, cost_csv, cost_rows, mean_cost, read_cost


def rows(number: int, kind: str, up: int, down: int) -> list[dict]:
    return [
        {"round": number, "site": site, "direction": direction, "kind": kind, "name": "x", "shape": "1",
         "dtype": "float32", "bytes": n}
        for site in ("a", "b") for direction, n in (("up", up), ("down", down))
    ]  # fmt: skip


def saved(tmp_path, rounds: list[dict], shares: list[int]) -> RunFolder:
    folder = RunFolder(tmp_path)
    for number, seconds in enumerate(rounds, start=1):
        ledger = rows(number, "train", 1_000_000, 2_000_000) + rows(number, "validate", 5, 7_000_000)
        ledger += rows(number, "share", 4096, 3_000_000) if number in shares else []
        history = {"round": number, "train_loss": 1.0, "validation_score": None}
        folder.save_round(Round(State(number, {}), history, ledger, seconds, 2), number)
    return folder


def test_one_time_costs_are_separate_from_costs_of_every_round(tmp_path):
    """Two clients: each shares for 0.5 s, then trains for 4 s in the first round and for 1 s in each other round."""
    rounds = [{"share": 1.0, "train": 8.0, "aggregate": 0.3}, *[{"train": 2.0, "aggregate": 0.1}] * 2]
    actual = read_cost(saved(tmp_path, rounds, [1]))
    assert actual == Cost(1.0, 0.0, 3.5, 0.1, 1e6, 2e6, 4096, 3e6)


def test_statistics_shared_in_every_round_count_as_costs_of_a_round(tmp_path):
    rounds = [{"share": 1.0, "train": 2.0, "aggregate": 0.1}] * 3
    actual = read_cost(saved(tmp_path, rounds, [1, 2, 3]))
    assert actual == Cost(1.0, 0.5, 0.0, 0.1, 1e6 + 4096, 5e6, 0, 0)


def test_a_run_without_timings_has_bytes_only(tmp_path):
    folder = saved(tmp_path, [{"train": 2.0, "aggregate": 0.1}], [])
    (tmp_path / "timings.csv").unlink()
    actual = read_cost(folder)
    assert (actual.train_s, actual.aggregate_s, actual.up) == (None, None, 1e6)
    assert cost_rows({"m": actual})[1][:3] == ["m", "-", "-"]


def test_costs_are_averaged_over_runs_and_written_in_seconds_and_bytes():
    one, other = Cost(1.0, 0.0, 2.0, 0.1, 1e6, 2e6, 0.0, 0.0), Cost(3.0, 0.0, 4.0, 0.3, 1e6, 2e6, 0.0, 0.0)
    actual = mean_cost([one, other])
    assert (actual.train_s, actual.once_s, actual.aggregate_s) == (2.0, 3.0, pytest.approx(0.2))
    assert cost_csv({"m": one}).splitlines()[1] == "m,1.0,0.0,2.0,0.1,1000000.0,2000000.0,0.0,0.0"
    assert cost_rows({"m": one})[1] == ["m", "1.00", "0.00", "2.00", "0.10", "1.000", "2.000", "0.000", "0.000"]


def test_timings_of_uncommitted_rounds_are_removed(tmp_path):
    folder = saved(tmp_path, [{"train": 2.0, "aggregate": 0.1}] * 3, [])
    folder.truncate(2)
    assert [row["round"] for row in folder.timings()] == [1, 2]
