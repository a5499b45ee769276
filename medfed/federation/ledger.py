"""The ledger: every tensor and every fact that crossed a site's border, with its size."""

from __future__ import annotations

import json
from collections.abc import Mapping

from medfed.federation.message import Message, n_bytes

COLUMNS = ("round", "site", "direction", "kind", "name", "shape", "dtype", "bytes")


def message_rows(round_number: int, direction: str, messages: Mapping[str, Message]) -> list[dict[str, object]]:
    """One row a tensor and a fact, also of what is then not accepted: it has left its site all the same.

    Args:
        direction: "up" (left the site) or "down" (came to the site).
        messages: by site.
    """
    rows = []
    for site in sorted(messages):
        message = messages[site]
        where = {"round": round_number, "site": site, "direction": direction, "kind": message.kind}
        for group in (message.weights, message.tensors):
            for name, tensor in group.items():
                shape = "x".join(map(str, tensor.shape)) or "1"
                dtype = str(tensor.dtype).removeprefix("torch.")
                rows.append({**where, "name": name, "shape": shape, "dtype": dtype, "bytes": n_bytes(tensor)})
        for name, fact in message.facts.items():
            rows.append({**where, "name": name, "shape": "1", "dtype": "fact", "bytes": len(json.dumps(fact))})
    return rows
