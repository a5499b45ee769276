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


def test_what_is_shared_once_and_what_the_first_round_takes_beyond_stands_apart(tmp_path):
    """Two clients: 0.5 s of sharing each, then 4 s in the first round and 1 s in each of the others."""
    rounds = [{"share": 1.0, "train": 8.0, "aggregate": 0.3}, *[{"train": 2.0, "aggregate": 0.1}] * 2]
    found = read_cost(saved(tmp_path, rounds, [1]))
    assert found == Cost(1.0, 0.0, 3.5, 0.1, 1e6, 2e6, 4096, 3e6)


def test_what_is_shared_every_round_counts_to_the_round(tmp_path):
    rounds = [{"share": 1.0, "train": 2.0, "aggregate": 0.1}] * 3
    found = read_cost(saved(tmp_path, rounds, [1, 2, 3]))
    assert found == Cost(1.0, 0.5, 0.0, 0.1, 1e6 + 4096, 5e6, 0, 0)


def test_a_run_from_before_timings_has_bytes_only(tmp_path):
    folder = saved(tmp_path, [{"train": 2.0, "aggregate": 0.1}], [])
    (tmp_path / "timings.csv").unlink()
    found = read_cost(folder)
    assert (found.train_s, found.aggregate_s, found.up) == (None, None, 1e6)
    assert cost_rows({"m": found})[1][:3] == ["m", "-", "-"]


def test_runs_are_averaged_and_written_in_seconds_and_bytes():
    one, other = Cost(1.0, 0.0, 2.0, 0.1, 1e6, 2e6, 0.0, 0.0), Cost(3.0, 0.0, 4.0, 0.3, 1e6, 2e6, 0.0, 0.0)
    found = mean_cost([one, other])
    assert (found.train_s, found.once_s, found.aggregate_s) == (2.0, 3.0, pytest.approx(0.2))
    assert cost_csv({"m": one}).splitlines()[1] == "m,1.0,0.0,2.0,0.1,1000000.0,2000000.0,0.0,0.0"
    assert cost_rows({"m": one})[1] == ["m", "1.00", "0.00", "2.00", "0.10", "1.000", "2.000", "0.000", "0.000"]


def test_rounds_that_were_never_committed_lose_their_timings(tmp_path):
    folder = saved(tmp_path, [{"train": 2.0, "aggregate": 0.1}] * 3, [])
    folder.truncate(2)
    assert [row["round"] for row in folder.timings()] == [1, 2]
