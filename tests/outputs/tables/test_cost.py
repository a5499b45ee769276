import io

import pandas as pd
import pytest
from made_runs import ledger_row

from medfed.federation.message import State
from medfed.federation.rounds import Round
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables import cost
from medfed.outputs.tables.cost import HEAD, cost_rows, costs_by_row, effort_notes, read_cost
from medfed.results.row import SENT, ComparisonRow


def rows(number: int, kind: str, up: int, down: int) -> list[dict]:
    content = "statistic" if kind == "share" else "weight"
    return [
        ledger_row(number, site, direction, "x", n, kind, content)
        for site in ("a", "b")
        for direction, n in (("up", up), ("down", down))
    ]


def saved(tmp_path, rounds: list[dict], shares: list[int]) -> RunFolder:
    tmp_path.mkdir(exist_ok=True)
    folder = RunFolder(tmp_path)
    for number, seconds in enumerate(rounds, start=1):
        ledger = rows(number, "train", 1_000_000, 2_000_000) + rows(number, "validate", 5, 7_000_000)
        ledger += rows(number, "share", 4096, 3_000_000) if number in shares else []
        history = {"round": number, "train_loss": 1.0, "validation_score": None}
        folder.save_round(Round(State(number, {}), history, ledger, seconds, 2), number)
    return folder


def known(costs: dict) -> dict:
    return {name: value for name, value in costs.items() if value}


def test_one_time_costs_are_separate_from_costs_of_every_round(tmp_path):
    """Two clients: each shares for 0.5 s, then trains for 4 s in the first round and for 1 s in each other round."""
    rounds = [{"share": 1.0, "train": 8.0, "aggregate": 0.3}, *[{"train": 2.0, "aggregate": 0.1}] * 2]
    times = {"train_s": 1.0, "once_s": 3.5, "aggregate_s": 0.1, "total_s": 1 + 8 + 2 + 2}
    sizes = {"up": 1e6, "down": 9e6, "up_once": 4096, "down_once": 3e6}
    assert known(read_cost(saved(tmp_path, rounds, [1]))) == times | sizes, "2 MB to train and 7 MB to validate"


def test_statistics_shared_in_every_round_count_as_costs_of_a_round(tmp_path):
    rounds = [{"share": 1.0, "train": 2.0, "aggregate": 0.1}] * 3
    actual = read_cost(saved(tmp_path, rounds, [1, 2, 3]))
    times = {"train_s": 1.0, "share_s": 0.5, "aggregate_s": 0.1, "total_s": 3 * (1 + 2)}
    assert known(actual) == times | {"up": 1e6 + 4096, "down": 12e6}


def test_timings_of_uncommitted_rounds_are_removed_and_a_run_without_timings_has_bytes_only(tmp_path):
    folder = saved(tmp_path, [{"train": 2.0, "aggregate": 0.1}] * 3, [])
    folder.truncate(2)
    assert [row["round"] for row in folder.timings()] == [1, 2]
    (tmp_path / "timings.csv").unlink()
    actual = read_cost(folder)
    assert (actual["train_s"], actual["aggregate_s"], actual["up"]) == (None, None, 1e6)
    assert cost_rows({"m": actual | {"sent": "updates"}})[1][:3] == ["m", "-", "-"]


def test_costs_are_averaged_over_runs_and_written_in_seconds_and_bytes(tmp_path):
    """One run takes 1 s in each round, and another 3 s; the images are unknown."""
    rounds = [{"train": 2.0, "aggregate": 0.1}], [{"train": 6.0, "aggregate": 0.3}]
    folders = [saved(tmp_path / name, own, []) for name, own in zip("ab", rounds)]
    costs = costs_by_row([(ComparisonRow("m"), "U", seed, folder) for seed, folder in enumerate(folders)])
    own = costs["m"]
    assert (own["train_s"], own["once_s"], own["aggregate_s"], own["images"]) == (2.0, 0.0, pytest.approx(0.2), None)
    numbers = ["2.00", "0.00", "0.00", "0.20", "1.000", "9.000", "0.000", "0.000"]
    assert cost_rows(costs)[1] == ["m", *numbers, "-", "-", "4.00", "updates"]
    table = pd.read_csv(io.StringIO(cost.cost_csv(costs)), index_col="method")
    assert list(table) == [*HEAD] and table.down["m"] == 9e6 and pd.isna(table.images["m"])
    (folders[1].path / "timings.csv").unlink()
    own = costs_by_row([(ComparisonRow("m"), "U", seed, folder) for seed, folder in enumerate(folders)])["m"]
    assert (own["train_s"], own["total_s"], own["up"]) == (None, None, 1e6), "no mean of the runs with times only"


def run_of(tmp_path, row: ComparisonRow, rounds: int, n_steps: int, n_images: int, n_clients: int) -> tuple:
    """A run whose rounds take one second, with these numbers of steps and images in a round of all clients together."""
    folder = RunFolder(tmp_path / row.folder)
    folder.create()
    seconds = {"train": 1.0, "aggregate": 0.1}
    for number in range(1, rounds + 1):
        history = {"round": number, "train_loss": 1.0, "validation_score": None}
        ledger = [] if row.arrangement in SENT else rows(number, "train", 10, 20)
        done = Round(State(number, {}), history, ledger, seconds, n_clients, n_steps, n_images)
        folder.save_round(done, number)
    return row, "U", 0, folder


def test_steps_are_of_one_client_and_images_of_all_and_rows_without_a_federation_have_no_bytes(tmp_path):
    """Two sites of 8 images, batches of 4, three rounds: FedAvg takes 2 steps at each site in a round, pooled 4."""
    runs = [
        run_of(tmp_path, ComparisonRow("pooled"), 3, 4, 16, 1),
        run_of(tmp_path, ComparisonRow("fedavg"), 3, 4, 16, 2),
        run_of(tmp_path, ComparisonRow("ccst"), 3, 8, 32, 2),
        *(run_of(tmp_path, ComparisonRow("local", (), site), 3, 2, 8, 1) for site in "AB"),
    ]
    costs = costs_by_row(runs)
    effort = {
        label: tuple(of_row[name] for name in ("steps", "images", "total_s", "sent")) for label, of_row in costs.items()
    }
    assert list(effort) == ["fedavg", "ccst", "pooled", "local"], "federated rows come first"
    assert effort == {
        "fedavg": (6, 48, 3, "updates"),
        "ccst": (12, 96, 3, "updates"),
        "pooled": (12, 48, 3, "images moved"),
        "local": (6, 48, 6, "nothing sent"),
    }
    assert costs["fedavg"]["up"] == 10 and costs["pooled"]["up"] is None and costs["local"]["down"] is None


def test_a_row_with_more_effort_than_its_baseline_is_named_and_whether_fedavg_of_equal_effort_was_run():
    steps = {"fedavg": (6, 48), "swa": (6, 48), "ccst": (12, 96), "elcfs": (6, 96), "pooled": (12, 48)}
    costs = {label: {"steps": own[0], "images": own[1]} for label, own in steps.items()}
    ccst, elcfs, pooled = effort_notes(costs, dict.fromkeys(costs, "fedavg"), {"elcfs": "fedavg@steps=ccst"})
    assert ccst.startswith("MORE EFFORT than fedavg (2.00 times the steps of a client and 2.00 times the images")
    assert "ccst" in ccst and "NOT RUN" in ccst and "NOT RUN" in elcfs and "NOT RUN" not in pooled
    costs["fedavg@steps=ccst"] = costs["ccst"]
    notes = effort_notes(costs, dict.fromkeys(costs, "fedavg"), {"elcfs": "fedavg@steps=ccst"})
    assert len(notes) == 3 and "NOT RUN" not in "".join(notes)
