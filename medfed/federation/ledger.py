"""The ledger of a run: one row for each tensor and each fact that a message carried to or from a site, with its size.

The round loop writes the rows of every message (`ledger.csv` in the run folder), and each hospital writes its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from medfed.federation.message import Message, fact_bytes, n_bytes, readable

COLUMNS = ("round", "site", "direction", "kind", "content", "name", "shape", "dtype", "bytes")
WEIGHT, STATISTIC, FACT = CONTENTS = ("weight", "statistic", "fact")  # the values of the column `content`


def message_rows(round_number: int, direction: str, messages: Mapping[str, Message]) -> list[dict[str, object]]:
    """Return the rows of messages by site, with the keys of `COLUMNS`, sorted by site.

    A reply that cannot be read is listed as a failed reply. The checksum of the weights in a request is listed like a
    fact.

    Args:
        direction: "up" for messages from the sites, "down" for messages to the sites.

    Returns:
        For a tensor, `shape` is a text such as "16x3x3" ("1" for a scalar) and `bytes` the size of its elements; for a
        fact, `shape` is "1", `dtype` is "fact", and `bytes` is the size of its JSON text.
    """
    rows = []
    for site in sorted(messages):
        message = readable(messages[site])
        common = {"round": round_number, "site": site, "direction": direction, "kind": message.kind}
        for content, group in ((WEIGHT, message.weights), (STATISTIC, message.tensors)):
            for name, tensor in group.items():
                shape = "x".join(map(str, tensor.shape)) or "1"
                dtype = str(tensor.dtype).removeprefix("torch.")
                rows.append(
                    {
                        **common,
                        "content": content,
                        "name": name,
                        "shape": shape,
                        "dtype": dtype,
                        "bytes": n_bytes(tensor),
                    }
                )
        named = {"weights_digest": message.weights_digest} if message.weights_digest else {}
        for name, fact in {**message.facts, **named}.items():
            rows.append(
                {**common, "content": FACT, "name": name, "shape": "1", "dtype": "fact", "bytes": fact_bytes(fact)}
            )
    return rows


def sum_bytes(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the bytes sent, {"up": {"weight": N, "statistic": N, "fact": N}, "down": ...}; "up" is from the sites."""
    sums = {direction: dict.fromkeys(CONTENTS, 0) for direction in ("up", "down")}
    for row in rows:
        sums[row["direction"]][row["content"]] += int(row["bytes"])
    return sums


def format_sums(by_content: Mapping[str, float]) -> str:
    """Return numbers of bytes by content as text: "12,345 bytes (weights 12,000, statistics 300, facts 45)"."""
    parts = ", ".join(f"{content}s {by_content[content]:,}" for content in CONTENTS)
    return f"{sum(by_content.values()):,} bytes ({parts})"
