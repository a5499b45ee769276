import torch

from medfed.federation.ledger import COLUMNS, format_sums, message_rows, statistic_name, sum_bytes
from medfed.federation.message import Message


def test_weights_facts_and_each_group_of_statistics_have_a_row_with_their_number_shape_and_bytes():
    weights = {"w": torch.zeros(2, 3), "b": torch.zeros(2)}
    statistics = {"n": torch.tensor(1), "style/a/mean": torch.zeros(2, 3), "style/a/std": torch.zeros(2, 3)}
    message = Message("train", weights, statistics | {"1/bank/a": torch.zeros(4)}, {"loss": 0.5, "examples": 12})
    rows = message_rows(4, "up", {"b": message, "a": Message("train")})
    assert [tuple(row) for row in rows] == [COLUMNS] * 5
    assert [(r["content"], r["name"], r["n"], r["shape"], r["bytes"]) for r in rows] == [
        ("weight", "", 2, "", 32),
        ("statistic", "n", 1, "1", 8),
        ("statistic", "style/*", 2, "2x3", 48),
        ("statistic", "1/bank/*", 1, "4", 16),
        ("fact", "examples; loss", 2, "", 5),
    ]
    assert {(r["round"], r["site"], r["direction"], r["kind"]) for r in rows} == {(4, "b", "up", "train")}
    assert statistic_name("1/windows") == "1/windows", "1/ is the place of a method in a stack"


def test_a_tensor_is_a_weight_or_a_statistic_by_its_place_in_the_message_and_not_by_its_name():
    message = Message("train", {"w": torch.zeros(2)}, {"w": torch.zeros(3)}, {"w": 1})
    rows = message_rows(1, "up", {"a": message})
    assert [(row["content"], row["bytes"]) for row in rows] == [("weight", 8), ("statistic", 12), ("fact", 1)]


def test_the_bytes_of_each_content_are_summed_by_direction():
    up = message_rows(1, "up", {"a": Message("train", {"w": torch.zeros(2)}, {"s": torch.zeros(3)}, {"loss": 0.25})})
    down = message_rows(1, "down", {"a": Message("train", {"w": torch.zeros(2)}, {}, {"round": 1})})
    sums = sum_bytes([*up, *up, *down])
    assert sums == {"up": {"weight": 16, "statistic": 24, "fact": 8}, "down": {"weight": 8, "statistic": 0, "fact": 1}}
    assert format_sums(sums["up"]) == "48 bytes (weights 16, statistics 24, facts 8)"
