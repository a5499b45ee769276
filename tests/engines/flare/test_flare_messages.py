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

from medfed.engines.flare.messages import META_KEY, to_message, to_shareable
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


def over_the_wire(shareable: Shareable) -> Shareable:
    return fobs.loads(fobs.dumps(shareable))


def same_bits(one: Message, other: Message) -> bool:
    return digest(one.to_bytes()) == digest(other.to_bytes())


def test_a_received_message_has_its_tensors_in_the_same_order():
    """They are also writable, though received arrays may be read-only, and PyTorch warns of these."""
    received = to_message(over_the_wire(to_shareable(MESSAGE)))
    assert list(received.weights) == list(WEIGHTS) and list(received.tensors) == list(TENSORS)
    for name, entry in WEIGHTS.items():
        assert received.weights[name].dtype == entry.dtype and received.weights[name].shape == entry.shape
    received.weights["z.weight"].add_(1)


MESSAGES = {
    "all parts": MESSAGE,
    "only facts": Message("validate", facts={"score": 0.5}),
    "only tensors": Message("share", tensors=TENSORS),
    "only weights": Message("validate", WEIGHTS, {}, {"round": 1}),
    "a checksum of weights": Message("train", facts={"round": 1}, weights_digest="ab" * 32),
}


@pytest.mark.parametrize("part", MESSAGES)
def test_a_received_message_is_bit_identical(part):
    assert same_bits(to_message(over_the_wire(to_shareable(MESSAGES[part]))), MESSAGES[part])


def test_privacy_filters_can_distinguish_weights_from_statistics():
    dxo = from_shareable(to_shareable(MESSAGE))
    assert dxo.data_kind == DataKind.COLLECTION
    kinds = {name: part.data_kind for name, part in dxo.data.items()}
    assert kinds == {"weights": DataKind.WEIGHTS, "tensors": DataKind.STATISTICS}
    assert all(isinstance(array, np.ndarray) for part in dxo.data.values() for array in part.data.values())


class _Halving(DXOFilter):
    """A privacy filter that halves one statistic, removes another and adds a third."""

    def __init__(self):
        super().__init__([DataKind.STATISTICS], [DataKind.STATISTICS])

    def process_dxo(self, dxo, shareable, fl_ctx):
        data = {"windows": dxo.data["windows"] / 2, "more": np.ones(1)}
        return DXO(dxo.data_kind, data)


def test_a_filters_changes_and_removals_are_received_and_its_additions_are_ignored():
    filtered = _Halving().process(to_shareable(MESSAGE), FLContext())
    received = to_message(over_the_wire(filtered))
    assert same_bits(received, Message("train", WEIGHTS, {"windows": TENSORS["windows"] / 2}, FACTS))


def test_a_filter_may_remove_all_statistics():
    shareable = to_shareable(MESSAGE)
    dxo = from_shareable(shareable)
    del dxo.data["tensors"]
    assert same_bits(to_message(dxo.update_shareable(shareable)), Message("train", WEIGHTS, {}, FACTS))


def test_a_failed_reply_is_received_with_its_reason():
    received = to_message(over_the_wire(to_shareable(failed_reply("its process was killed"))))
    assert received == failed_reply("its process was killed")
    assert to_shareable(received).get_return_code() == ReturnCode.EXECUTION_EXCEPTION


def test_an_error_of_flare_becomes_a_failed_reply():
    assert to_message(make_reply(ReturnCode.TASK_ABORTED)) == failed_reply("FLARE says TASK_ABORTED")


def test_a_filter_that_blocks_a_message_becomes_a_failed_reply():
    with pytest.raises(ContentBlockedException):
        DXOBlocker([DataKind.STATISTICS]).process(to_shareable(MESSAGE), FLContext())
    received = to_message(make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR))  # what FLARE sends then
    assert received.kind == "failed" and "one of its privacy filters refused the reply" in received.facts["why"]


def test_encrypted_tensors_are_refused_with_the_name_of_the_algorithm():
    part = DXO(DataKind.WEIGHTS, {"w": "ciphertext"}, {MetaKey.PROCESSED_ALGORITHM: "CKKS"})  # as HEModelEncryptor does
    header = json.dumps({"kind": "train", "facts": {}, "order": {"weights": ["w"], "tensors": []}})
    with pytest.raises(ValueError, match="converted its tensors to 'CKKS', but the coordinator must read an update"):
        to_message(DXO(DataKind.COLLECTION, {"weights": part}, {META_KEY: header}).to_shareable())


def with_header(header: object) -> Shareable:
    return DXO(DataKind.COLLECTION, {"weights": DXO(DataKind.WEIGHTS, {})}, {META_KEY: header}).to_shareable()


NO_TENSORS = '"order": {"weights": [], "tensors": []}}'
NO_MESSAGES = {
    "empty": Shareable(),
    "no collection": DXO(DataKind.WEIGHTS, {"w": np.ones(1)}).to_shareable(),
    "no JSON": with_header("no JSON"),
    "a list": with_header("[]"),
    "no order": with_header("{}"),
    "a number": with_header(7),
    "an order without groups": with_header('{"kind": "train", "facts": {}, "order": ["weights"]}'),
    "facts that are NaN": with_header('{"kind": "train", "facts": {"loss": NaN}, ' + NO_TENSORS),
    "facts that are a list": with_header('{"kind": "train", "facts": [], ' + NO_TENSORS),
    "facts within facts": with_header('{"kind": "train", "facts": ' + 100_000 * "["),
    "half a character": with_header('{"kind": "\\ud800", "facts": {}, ' + NO_TENSORS),
    "a failed reply without a reason": with_header('{"kind": "failed", "facts": {}, ' + NO_TENSORS),
    "an order of no names": with_header('{"kind": "train", "facts": {}, "order": {"weights": 3, "tensors": []}}'),
}


@pytest.mark.parametrize("what", NO_MESSAGES)
def test_other_flare_messages_are_refused(what):
    with pytest.raises(ValueError):
        to_message(NO_MESSAGES[what])
