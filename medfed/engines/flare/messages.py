"""Conversion between medfed's messages and the messages of NVIDIA FLARE.

Weights and statistics are sent as separate parts with FLARE's own kinds, so that a hospital's privacy filters can
recognise them.
"""

from __future__ import annotations

import json

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.decomposers import numpy_decomposers
from torch import Tensor

from medfed.federation.encoding import check_header_size, parse_json
from medfed.federation.message import Message, failed_reply

GROUPS = {"weights": DataKind.WEIGHTS, "tensors": DataKind.STATISTICS}
META_KEY = "medfed"  # the entry of FLARE's meta data that holds everything but the tensors, as JSON
TIMEOUT_HEADER = "medfed_seconds"  # the header of a request with the seconds until the site must have replied
LOAD_TIMEOUT_HEADER = "medfed_load_seconds"  # the same with the seconds in which the site must have read its data
PLAN_HEADER = "medfed_plan"  # the header of a request with the checksum of the coordinator's plan
REASON_HEADER = "medfed_why"  # the header of a failed reply with the reason, as a clause
FILTER_ERRORS = {
    ReturnCode.TASK_DATA_FILTER_ERROR: "one of its privacy filters refused the request; the site's log says why",
    ReturnCode.TASK_RESULT_FILTER_ERROR: "one of its privacy filters refused the reply; the site's log says why",
}
numpy_decomposers.register()  # how arrays become bytes; a process that receives a task earlier loses them silently


def to_shareable(message: Message) -> Shareable:
    """Convert a message of medfed to a FLARE message.

    The weights are a part of FLARE's kind WEIGHTS, all other tensors a part of kind STATISTICS, as NumPy arrays by
    name; an empty part is left out. The meta data contain the kind and the facts. A message of kind "failed" becomes a
    FLARE reply with the error code EXECUTION_EXCEPTION and the reason in a header.
    """
    if message.kind == "failed":
        reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
        reply.set_header(REASON_HEADER, message.facts["why"])
        return reply
    groups = {group: getattr(message, group) for group in GROUPS}
    parts = {
        group: DXO(GROUPS[group], {name: _array(entry) for name, entry in tensors.items()})
        for group, tensors in groups.items()
        if tensors
    }
    order = {group: list(tensors) for group, tensors in groups.items()}
    header = {"kind": message.kind, "facts": message.facts, "order": order, "weights_digest": message.weights_digest}
    return DXO(DataKind.COLLECTION, parts, {META_KEY: json.dumps(header, allow_nan=False)}).to_shareable()


def to_message(shareable: Shareable) -> Message:
    """Convert a FLARE message from `to_shareable`, or a FLARE reply with an error code, to a message of medfed.

    A hospital's privacy filters may have removed or changed tensors. An error code becomes a "failed" reply. ValueError
    if the FLARE message was not made by `to_shareable`, is not valid (`Message.check`), or a filter packed or encrypted
    its tensors.
    """
    if (code := shareable.get_return_code()) != ReturnCode.OK:
        return failed_reply(str(shareable.get_header(REASON_HEADER) or FILTER_ERRORS.get(code) or f"FLARE says {code}"))
    dxo = from_shareable(shareable)
    if dxo.data_kind != DataKind.COLLECTION or not isinstance(dxo.get_meta_prop(META_KEY), str):
        raise ValueError(f"expected a collection with '{META_KEY}' in its meta data, got {dxo.data_kind}")
    try:
        text = dxo.get_meta_prop(META_KEY)
        check_header_size(text.encode())
        header = parse_json(text)
        groups = {group: _tensors(dxo.data.get(group), header["order"][group]) for group in GROUPS}
        named = header.get("weights_digest", "")
        message = Message(header["kind"], groups["weights"], groups["tensors"], header["facts"], named)
        message.check()
        return message
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"the message cannot be read, because its metadata '{META_KEY}' do not fit its tensors ({error!r}); check "
            "that the coordinator and the site have the same version of medfed"
        ) from error


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().to("cpu").contiguous().numpy()


def _tensors(dxo: DXO | None, order: list[str]) -> dict[str, Tensor]:
    """The tensors of FLARE's data in this order; ValueError if a privacy filter has changed their form."""
    data = dxo.data if dxo else {}
    # FLARE's filters that encrypt or pack tensors set this entry.
    if algorithm := dxo and dxo.get_meta_prop(MetaKey.PROCESSED_ALGORITHM):
        raise ValueError(
            f"a privacy filter of this site converted its tensors to '{algorithm}', but the coordinator "
            "must read an update to check and average it; remove that filter from the site's privacy.json"
        )
    return {name: torch.from_numpy(np.array(data[name])) for name in order if name in data}
