import torch

from medfed.federation.ledger import COLUMNS, message_rows
from medfed.federation.message import Message


def test_every_tensor_and_every_fact_has_a_row_with_its_size_in_bytes():
    message = Message("train", {"w": torch.zeros(2, 3)}, {"n": torch.tensor(1)}, {"loss": 0.5})
    rows = message_rows(4, "up", {"b": message, "a": Message("train")})
    assert [tuple(row) for row in rows] == [COLUMNS] * 3
    assert [(r["name"], r["shape"], r["dtype"], r["bytes"]) for r in rows] == [
        ("w", "2x3", "float32", 24),
        ("n", "1", "int64", 8),
        ("loss", "1", "fact", 3),
    ]
    assert {(r["round"], r["site"], r["direction"], r["kind"]) for r in rows} == {(4, "b", "up", "train")}
