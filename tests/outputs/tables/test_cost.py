import json
from dataclasses import asdict, replace

import pytest
from made_runs import ledger_row

from medfed.federation.message import State
from medfed.federation.rounds import Round
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables import cost
from medfed.outputs.tables.cost import Cost, cost_rows, costs_by_row, effort_notes, mean_cost, read_cost
from medfed.results.row import SENT, ComparisonRow


def rows(number: int, kind: str, up: int, down: int) -> list[dict]:
    content = "statistic" if kind == "share" else "weight"
    return [
        ledger_row(number, site, direction, "x", n, kind, content)
        for site in ("a", "b")
        for direction, n in (("up", up), ("down", down))
    ]


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
    assert actual == Cost(
        1.0, 0.0, 3.5, 0.1, 1e6, 9e6, 4096, 3e6, total_s=1 + 8 + 2 + 2, up_weights=1e6, down_weights=9e6
    ), "2 MB to train and 7 MB to validate"


def test_statistics_shared_in_every_round_count_as_costs_of_a_round(tmp_path):
    rounds = [{"share": 1.0, "train": 2.0, "aggregate": 0.1}] * 3
    actual = read_cost(saved(tmp_path, rounds, [1, 2, 3]))
    parts = {"up_weights": 1e6, "up_statistics": 4096, "down_weights": 9e6, "down_statistics": 3e6}
    assert actual == Cost(1.0, 0.5, 0.0, 0.1, 1e6 + 4096, 12e6, 0, 0, total_s=3 * (1 + 2), **parts)
    assert actual.up == actual.up_weights + actual.up_statistics and actual.down == 9e6 + actual.down_statistics
    head = ["method", *(f"{way} {what} kB" for way in ("up", "down") for what in ("weights", "statistics", "facts"))]
    numbers = ["m", "1000.000", "4.096", "0.000", "9000.000", "3000.000", "0.000"]
    assert cost_rows({"m": actual}, cost.PARTS) == [head, numbers]


def test_timings_of_uncommitted_rounds_are_removed_and_a_run_without_timings_has_bytes_only(tmp_path):
    folder = saved(tmp_path, [{"train": 2.0, "aggregate": 0.1}] * 3, [])
    folder.truncate(2)
    assert [row["round"] for row in folder.timings()] == [1, 2]
    (tmp_path / "timings.csv").unlink()
    actual = read_cost(folder)
    assert (actual.train_s, actual.aggregate_s, actual.up) == (None, None, 1e6)
    assert cost_rows({"m": actual})[1][:3] == ["m", "-", "-"]


def test_costs_are_averaged_over_runs_and_written_in_seconds_and_bytes():
    one, other = Cost(1.0, 0.0, 2.0, 0.1, 1e6, 2e6, 0.0, 0.0), Cost(3.0, 0.0, 4.0, 0.3, 1e6, 2e6, 0.0, 0.0)
    actual = mean_cost([one, other])
    assert (actual.train_s, actual.once_s, actual.aggregate_s) == (2.0, 3.0, pytest.approx(0.2))
    line = "m,1.0,0.0,2.0,0.1,1000000.0,2000000.0,0.0,0.0,,,,updates" + ",0.0" * 6
    assert cost.cost_csv({"m": one}).splitlines()[1] == line
    numbers = ["1.00", "0.00", "2.00", "0.10", "1.000", "2.000", "0.000", "0.000"]
    assert cost_rows({"m": one})[1] == ["m", *numbers, "-", "-", "-", "updates"]
    assert json.loads(cost.cost_json({"m": one}))[0] == {"method": "m", **asdict(one)}


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
    effort = {label: (of_row.steps, of_row.images, of_row.total_s, of_row.sent) for label, of_row in costs.items()}
    assert list(effort) == ["fedavg", "ccst", "pooled", "local"], "federated rows come first"
    assert effort == {
        "fedavg": (6, 48, 3, "updates"),
        "ccst": (12, 96, 3, "updates"),
        "pooled": (12, 48, 3, "images moved"),
        "local": (6, 48, 6, "nothing sent"),
    }
    assert costs["fedavg"].up == 10 and costs["pooled"].up is None and costs["local"].down is None
    ccst, pooled = effort_notes(costs, dict.fromkeys(costs, "fedavg"))
    more = "MORE EFFORT than fedavg (2.00 times the steps and 2.00 times the images), from which a gain may come: ccst"
    assert ccst == more + "; FedAvg of equal effort (fedavg@steps=METHOD) was NOT RUN for all of them"
    with_equal = {**costs, "fedavg@steps=ccst": costs["ccst"]}
    assert effort_notes(with_equal, dict.fromkeys(with_equal, "fedavg"))[0] == f"{more}; compare with fedavg@steps=ccst"
    assert pooled == (
        "pooled made 2.00 times the steps of a client of fedavg, with 1.00 times the images of all clients together"
    )
    assert effort_notes(costs, dict.fromkeys(costs, "ccst"))[0] == (
        "LESS EFFORT than ccst (0.50 times the steps and 0.50 times the images): fedavg"
    )


def test_a_row_with_as_many_steps_and_images_as_its_baseline_is_named_first():
    same = Cost(1.0, 0.0, 0.0, 0.1, 1.0, 1.0, 0.0, 0.0, steps=10, images=40)
    costs = {"fedavg": same, "swa": same, "elcfs": replace(same, images=80)}
    equal, more = effort_notes(costs, dict.fromkeys(costs, "fedavg"))
    assert equal == "as many steps and images as fedavg: swa"
    assert more.startswith("MORE EFFORT than fedavg (1.00 times the steps and 2.00 times the images)")
