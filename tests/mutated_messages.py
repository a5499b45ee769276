"""Mutations of valid messages and checkpoints: damaged bytes, and headers with values that nobody expects there."""

import json
import random

import torch

from medfed.federation.encoding import InvalidMessage
from medfed.federation.message import Message, State, failed_reply

ODD = json.loads(r"""[
    null, true, false, 0, -1, 1, 2147483648, 9223372036854775808, 1000000000000000000000000000000, 1.5, 1e308,
    NaN, Infinity, "", "a", "weights/z", "\n", "\ud800", "\u202e", [], {}, [[]], [null], ["a"],
    [0, 4611686018427387904], [1099511627776, 1099511627776], {"a": 1}, {"why": 3},
    "C64", "F4", "BOOL", "U16", "F8_E4M3", "I64", [[[[[[[[[[[[0]]]]]]]]]]]]
]""")
ODD.insert(ODD.index("\u202e") + 1, "a" * 2000)
MESSAGES = [
    Message(
        "train",
        {"z": torch.ones(2, 3), "a": torch.tensor(5)},
        {"bank/x": torch.zeros(0, 4), "b": torch.ones(3) > 0},
        {"round": 3, "loss": 0.1, "text": "é"},
        "ab" * 32,
    ),
    Message("validate", facts={"score": 0.5, "list": [1, None]}),
    failed_reply("did not reply within 60 s"),
]
STATE = State(7, {"w": torch.ones(2)}, {"bank/a": torch.zeros(3)}, {"north": 7, "south": 0}, frozenset({"w"}))


def split(data: bytes) -> tuple[dict, bytes]:
    """Return the header and the tensors of bytes in the safetensors format."""
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def joined(header: dict, body: bytes, inner: dict | None = None) -> bytes:
    """Return bytes in the safetensors format, whatever the header holds; `inner` is medfed's part of the header."""
    if inner is not None:
        header = {**header, "__metadata__": {"medfed": json.dumps(inner)}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return a mutation of valid bytes, of one of six kinds."""
    kind = rng.randrange(6)
    if kind == 0:
        return _with_other_bytes(data, rng, len(data))
    if kind == 1:
        return _with_other_bytes(data, rng, 8 + int.from_bytes(data[:8], "little"))
    if kind == 2:
        place = rng.randrange(len(data))
        inserted = rng.choice([b"", bytes(rng.randrange(300)), data[:place]])
        return data[:place] + inserted + data[place + rng.randrange(9) :]
    header, body = split(data)
    if kind == 3:
        replace_one(header, rng)
        return joined(header, body)
    inner = json.loads(header["__metadata__"]["medfed"])
    if kind == 4:
        replace_one(inner, rng)
        return joined(header, body, inner)
    opening, depth = rng.choice(["[", '{"a":']), rng.choice([9, 130, 5000, 100_000])
    nested = opening * depth + "0" + "]}"["{" in opening] * depth
    text = json.dumps({**inner, "facts": "HERE"}).replace('"HERE"', nested)
    return joined({**header, "__metadata__": {"medfed": text}}, body)


def _with_other_bytes(data: bytes, rng: random.Random, end: int) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        changed[rng.randrange(end)] = rng.choice([rng.randrange(256), *b'[]{},:"0\\'])
    return bytes(changed)


def replace_one(tree: dict | list, rng: random.Random) -> None:
    """Replace, delete or rename one value somewhere in JSON values."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else range(len(tree))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(tree[key], dict | list) and tree[key] and rng.random() < 0.7:
            tree = tree[key]
            continue
        action = rng.randrange(4)
        if action == 0:
            del tree[key]
        elif action == 1 and isinstance(tree, dict):
            tree[rng.choice([odd for odd in ODD if isinstance(odd, str)])] = tree[key]
        else:
            tree[key] = rng.choice(ODD)
        return


def refused_or_stable(kind: type[Message] | type[State], data: bytes) -> bool:
    """Whether bytes are accepted; what is accepted can be encoded, to bytes that are accepted and mean the same."""
    try:
        value = kind.from_bytes(data)
    except InvalidMessage:
        return False
    encoded = value.to_bytes()
    assert kind.from_bytes(encoded).to_bytes() == encoded
    return True
