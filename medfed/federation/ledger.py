"""The ledger of a run: what every message carried to or from a site, with its size.

The round loop writes the rows of every message (`ledger.csv` in the run folder), and each hospital writes its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from medfed.federation.message import Message, fact_bytes, n_bytes, readable

COLUMNS = ("round", "site", "direction", "kind", "content", "name", "n", "shape", "bytes")
WEIGHT, STATISTIC, FACT = CONTENTS = ("weight", "statistic", "fact")  # the values of the column `content`
PLACE = re.compile(r"\d+/")  # of a method in a stack, at the beginning of a name


def message_rows(round_number: int, direction: str, messages: Mapping[str, Message]) -> list[dict[str, object]]:
    """Return the rows of messages by site, with the keys of `COLUMNS`, sorted by site.

    The weights of a message are one row without a name, its facts one row with their names joined by "; ". Statistics
    have one row for each name; those whose names share the part before their first slash are one row, "style/*"
    (`statistic_name`). `n` is the number of tensors or facts, `shape` a text such as "16x3x3" ("1" for a scalar; "" for
    facts and for tensors of several shapes), and `bytes` the size of the tensors' elements or of the facts' JSON texts.

    A reply that cannot be read is listed as a failed reply, and the checksum of the weights in a request like a fact.
    `direction` is "up" for messages from the sites, "down" for messages to the sites.
    """
    rows = []
    for site in sorted(messages):
        message = readable(messages[site])
        groups: dict[tuple[str, str], list[Tensor]] = {}
        for tensor in message.weights.values():
            groups.setdefault((WEIGHT, ""), []).append(tensor)
        for name, tensor in message.tensors.items():
            groups.setdefault((STATISTIC, statistic_name(name)), []).append(tensor)
        entries = [
            (content, name, len(tensors), _common_shape(tensors), sum(map(n_bytes, tensors)))
            for (content, name), tensors in groups.items()
        ]
        named = {"weights_digest": message.weights_digest} if message.weights_digest else {}
        if facts := {**message.facts, **named}:
            names = "; ".join(sorted({name.partition("/")[0] for name in facts}))
            entries.append((FACT, names, len(facts), "", sum(map(fact_bytes, facts.values()))))
        common = (round_number, site, direction, message.kind)
        rows += [dict(zip(COLUMNS, (*common, *entry), strict=True)) for entry in entries]
    return rows


def statistic_name(name: str) -> str:
    """The name of a statistic's row in the ledger: "style/north/mean" is part of "style/*"."""
    place = match.group() if (match := PLACE.match(name)) else ""
    first, slash, _ = name.removeprefix(place).partition("/")
    return f"{place}{first}{slash}{'*' * bool(slash)}"


def _common_shape(tensors: Iterable[Tensor]) -> str:
    shapes = {"x".join(map(str, tensor.shape)) or "1" for tensor in tensors}
    return shapes.pop() if len(shapes) == 1 else ""


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
