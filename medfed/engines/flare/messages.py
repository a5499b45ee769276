"""A message as NVIDIA FLARE carries it: weights and statistics apart, so that a hospital's own filters know them."""

from __future__ import annotations

import json

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.decomposers import numpy_decomposers
from torch import Tensor

from medfed.federation.message import Message, failed_reply

GROUPS = {"weights": DataKind.WEIGHTS, "tensors": DataKind.STATISTICS}
HEADER = "medfed"  # the entry of the meta data that holds everything but tensors, as JSON
SECONDS = "medfed_seconds"  # the header of a letter that says how long the site may take
WHY = "medfed_why"  # the header of a reply that says in a clause why there is no answer
FILTERED = {
    ReturnCode.TASK_DATA_FILTER_ERROR: "a privacy filter of its own did not let the letter in; the site's log says why",
    ReturnCode.TASK_RESULT_FILTER_ERROR: "a privacy filter of its own let nothing out; the site's log says why",
}


def register() -> None:
    """Before the first task arrives, in every process: FLARE would not know arrays, and say nothing."""
    numpy_decomposers.register()


def to_shareable(message: Message) -> Shareable:
    """Weights as a DXO of kind WEIGHTS, other tensors as STATISTICS, both in a COLLECTION; arrays by name."""
    if message.kind == "failed":
        reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
        reply.set_header(WHY, message.facts["why"])
        return reply
    groups = {group: getattr(message, group) for group in GROUPS}
    parts = {group: DXO(GROUPS[group], {name: _array(entry) for name, entry in tensors.items()})
             for group, tensors in groups.items() if tensors}  # fmt: skip
    order = {group: list(tensors) for group, tensors in groups.items()}
    header = json.dumps({"kind": message.kind, "facts": message.facts, "order": order}, allow_nan=False)
    return DXO(DataKind.COLLECTION, parts, {HEADER: header}).to_shareable()


def to_message(shareable: Shareable) -> Message:
    """The message again. What a filter took out is missing, what it changed is changed.

    A reply that is none becomes `failed`, with the reason that it gives.

    Raises:
        ValueError: if it is no message of ours.
    """
    if (code := shareable.get_return_code()) != ReturnCode.OK:
        return failed_reply(str(shareable.get_header(WHY) or FILTERED.get(code) or f"FLARE says {code}"))
    dxo = from_shareable(shareable)
    if dxo.data_kind != DataKind.COLLECTION or not isinstance(dxo.get_meta_prop(HEADER), str):
        raise ValueError(f"expected a collection with '{HEADER}' among its meta data, got {dxo.data_kind}")
    try:
        header = json.loads(dxo.get_meta_prop(HEADER))
        groups = {group: _tensors(dxo.data.get(group), header["order"][group]) for group in GROUPS}
        return Message(header["kind"], groups["weights"], groups["tensors"], header["facts"])
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"'{HEADER}', or what it tells of, is not as medfed writes it ({error!r})") from error


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().to("cpu").contiguous().numpy()


def _tensors(dxo: DXO | None, order: list[str]) -> dict[str, Tensor]:
    data = dxo.data if dxo else {}
    if how := dxo and dxo.get_meta_prop(MetaKey.PROCESSED_ALGORITHM):  # from FLARE's own that encrypt or pack
        raise ValueError(f"a filter of its own made '{how}' of it, and a coordinator must see an update to check it "
                         "and to average it; take that filter out of its privacy.json")
    return {name: torch.from_numpy(np.array(data[name])) for name in order if name in data}
