"""The ledger of a run: one row for each tensor and each fact that a message carried to or from a site, with its size.

The round loop writes the rows of every message (`ledger.csv` in the run folder), and each hospital writes its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from medfed.federation.message import Message, n_bytes, readable

COLUMNS = ("round", "site", "direction", "kind", "name", "shape", "dtype", "bytes")


def message_rows(round_number: int, direction: str, messages: Mapping[str, Message]) -> list[dict[str, object]]:
    """Return the rows of the ledger for some messages. The ledger is the table of everything that was sent.

    A message contains tensors and facts (named values without a shape, such as a loss or a number of images). Each
    tensor and each fact has one row.

    Args:
        round_number: the round that the messages belong to.
        direction: "up" for messages from the sites, "down" for messages to the sites.
        messages: dictionary from the name of a site to its message. Replies that are rejected later are included,
            because they have left their site. A reply that cannot be read is listed as a failed reply.

    Returns:
        One dict for each row, with the keys of `COLUMNS`, sorted by site. For a tensor, `shape` is a text such as
        "16x3x3" ("1" for a scalar), `dtype` a text such as "float32", and `bytes` the size of its elements. For a fact,
        `shape` is "1", `dtype` is "fact", and `bytes` is the number of characters of its JSON text. The checksum of the
        weights in a request is listed like a fact, with the name `weights_digest`.
    """
    rows = []
    for site in sorted(messages):
        message = readable(messages[site])
        common = {"round": round_number, "site": site, "direction": direction, "kind": message.kind}
        for group in (message.weights, message.tensors):
            for name, tensor in group.items():
                shape = "x".join(map(str, tensor.shape)) or "1"
                dtype = str(tensor.dtype).removeprefix("torch.")
                rows.append({**common, "name": name, "shape": shape, "dtype": dtype, "bytes": n_bytes(tensor)})
        named = {"weights_digest": message.weights_digest} if message.weights_digest else {}
        for name, fact in {**message.facts, **named}.items():
            rows.append({**common, "name": name, "shape": "1", "dtype": "fact", "bytes": len(json.dumps(fact))})
    return rows
