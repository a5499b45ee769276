import json

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare")

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.filters.dxo_blocker import DXOBlocker
from nvflare.fuel.utils import fobs

from medfed.engines.flare.messages import HEADER, register, to_message, to_shareable
from medfed.federation.message import Message, digest, failed_reply

WEIGHTS = {
    "z.weight": torch.tensor([[1.5, -0.0], [float("1e-45"), 3e38]]),
    "a.bias": torch.tensor([0.1], dtype=torch.float64),
    "norm.num_batches_tracked": torch.tensor(7),
    "mask": torch.tensor([True, False]),
    "scale": torch.tensor(0.25),
    "nothing": torch.zeros(0, 3),
}
TENSORS = {"windows": torch.rand(2, 1, 3, generator=torch.Generator().manual_seed(0)), "a/b": torch.tensor([2**40])}
FACTS = {"round": 2, "loss": 0.1, "text": "a „b“", "list": [1, None]}
MESSAGE = Message("train", WEIGHTS, TENSORS, FACTS)


@pytest.fixture(autouse=True, scope="module")
def registered():
    register()


def over_the_wire(shareable: Shareable) -> Shareable:
    return fobs.loads(fobs.dumps(shareable))


def same_bits(one: Message, other: Message) -> bool:
    return digest(one.to_bytes()) == digest(other.to_bytes())


def test_a_message_comes_back_to_the_bit_and_in_its_order():
    found = to_message(over_the_wire(to_shareable(MESSAGE)))
    assert same_bits(found, MESSAGE)
    assert list(found.weights) == list(WEIGHTS) and list(found.tensors) == list(TENSORS)
    for name, entry in WEIGHTS.items():
        assert found.weights[name].dtype == entry.dtype and found.weights[name].shape == entry.shape


@pytest.mark.parametrize("message", [
    Message("validate", facts={"score": 0.5}), Message("share", tensors=TENSORS),
    Message("validate", WEIGHTS, {}, {"round": 1}),
], ids=["facts alone", "tensors alone", "weights alone"])  # fmt: skip
def test_so_does_one_that_lacks_a_part(message):
    assert same_bits(to_message(over_the_wire(to_shareable(message))), message)


def test_what_came_can_be_written_to():
    """Arrays off the wire may be read-only, and PyTorch warns of these."""
    found = to_message(over_the_wire(to_shareable(MESSAGE)))
    found.weights["z.weight"].add_(1)


def test_a_hospitals_filters_can_tell_weights_from_statistics():
    dxo = from_shareable(to_shareable(MESSAGE))
    assert dxo.data_kind == DataKind.COLLECTION
    assert {name: part.data_kind for name, part in dxo.data.items()} == {
        "weights": DataKind.WEIGHTS, "tensors": DataKind.STATISTICS}  # fmt: skip
    assert all(isinstance(array, np.ndarray) for part in dxo.data.values() for array in part.data.values())


class _Halving(DXOFilter):
    """As a privacy filter of a hospital: it halves one statistic, takes one away and puts one in."""

    def __init__(self):
        super().__init__([DataKind.STATISTICS], [DataKind.STATISTICS])

    def process_dxo(self, dxo, shareable, fl_ctx):
        data = {"windows": dxo.data["windows"] / 2, "more": np.ones(1)}
        return DXO(dxo.data_kind, data)


def test_what_a_filter_changed_is_changed_what_it_took_is_gone_and_what_it_added_is_ignored():
    filtered = _Halving().process(to_shareable(MESSAGE), FLContext())
    found = to_message(over_the_wire(filtered))
    assert same_bits(found, Message("train", WEIGHTS, {"windows": TENSORS["windows"] / 2}, FACTS))


def test_a_filter_may_take_a_whole_part():
    shareable = to_shareable(MESSAGE)
    dxo = from_shareable(shareable)
    del dxo.data["tensors"]
    assert same_bits(to_message(dxo.update_shareable(shareable)), Message("train", WEIGHTS, {}, FACTS))


def test_a_reason_comes_as_a_reason():
    found = to_message(over_the_wire(to_shareable(failed_reply("its process was killed"))))
    assert found == failed_reply("its process was killed")
    assert to_shareable(found).get_return_code() == ReturnCode.EXECUTION_EXCEPTION


def test_an_error_of_flares_own_is_a_reason_too():
    assert to_message(make_reply(ReturnCode.TASK_ABORTED)) == failed_reply("FLARE says TASK_ABORTED")


def test_so_is_a_filter_that_blocks():
    with pytest.raises(ContentBlockedException):
        DXOBlocker([DataKind.STATISTICS]).process(to_shareable(MESSAGE), FLContext())
    found = to_message(make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR))  # what FLARE sends then
    assert found.kind == "failed" and "privacy filter of its own let nothing out" in found.facts["why"]


def test_what_a_filter_encrypted_or_packed_is_told_as_that():
    part = DXO(DataKind.WEIGHTS, {"w": "ciphertext"}, {MetaKey.PROCESSED_ALGORITHM: "CKKS"})  # as HEModelEncryptor does
    header = json.dumps({"kind": "train", "facts": {}, "order": {"weights": ["w"], "tensors": []}})
    with pytest.raises(ValueError, match="a filter of its own made 'CKKS' of it, and a coordinator must see an update"):
        to_message(DXO(DataKind.COLLECTION, {"weights": part}, {HEADER: header}).to_shareable())


def told(header: object) -> Shareable:
    return DXO(DataKind.COLLECTION, {"weights": DXO(DataKind.WEIGHTS, {})}, {HEADER: header}).to_shareable()


NO_MESSAGES = {
    "empty": Shareable(),
    "no collection": DXO(DataKind.WEIGHTS, {"w": np.ones(1)}).to_shareable(),
    "no JSON": told("no JSON"),
    "a list": told("[]"),
    "no order": told("{}"),
    "a number": told(7),
    "an order without groups": told('{"kind": "train", "facts": {}, "order": ["weights"]}'),
    "an order of no names": told('{"kind": "train", "facts": {}, "order": {"weights": 3, "tensors": []}}'),
}


@pytest.mark.parametrize("what", NO_MESSAGES)
def test_what_is_no_message_is_refused(what):
    with pytest.raises(ValueError):
        to_message(NO_MESSAGES[what])
