"""Checks of a single reply: its kind, size, numbers and facts."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from medfed.federation.message import Message, n_bytes

MAX_EXAMPLES = 10**8  # more images than any hospital has
MAX_STEPS = 10**8
MAX_NUMBER = 1e18  # float32 can hold its square, and no more
MAX_MODELS, EXTRA_BYTES = 8, 2 * 2**30  # a reply is at most this many times the model, plus statistics
MAX_ENTRIES, MAX_FACTS_CHARACTERS = 100_000, 2**16
NUMBERS = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.uint8, torch.int8,
           torch.int16, torch.int32, torch.int64}  # fmt: skip
DIVERGED = ("training diverged there, try a smaller training.learning_rate or look at the site's images with "
            "python -m medfed.data check")  # fmt: skip


class InvalidReply(ValueError):
    """Arguments: the reason; or the reason and an advice."""


@dataclass(frozen=True)
class Expected:
    """What the replies of one exchange are compared with.

    weights: the global weights.
    examples: how many images each site counted in earlier rounds, where that is known.
    parameters: the entries of `weights` that are parameters; the others are buffers, such as running statistics.
    largest_change: `federation.largest_change`.
    """

    kind: str
    round: int
    weights: Mapping[str, Tensor]
    examples: Mapping[str, int]
    parameters: frozenset[str]
    largest_change: float | None = None


def check_reply(site: str, reply: Message, expected: Expected) -> None:
    """Raise InvalidReply for what is wrong in a reply, whatever the other sites sent."""
    if reply.kind != expected.kind:
        raise InvalidReply(f"is of kind {reprlib.repr(reply.kind)}, where '{expected.kind}' was asked for")
    if reply.facts.get("round", expected.round) != expected.round:
        raise InvalidReply(f"says that it is of round {reprlib.repr(reply.facts['round'])}")
    _check_size(reply, expected.weights)
    if expected.kind != "train" and reply.weights:
        raise InvalidReply(f"holds {len(reply.weights)} entries of a network, which nobody asked for")
    if expected.kind == "validate" and reply.tensors:
        raise InvalidReply(f"holds {len(reply.tensors)} tensors, which nobody asked for")
    for name, entry in [*reply.weights.items(), *reply.tensors.items()]:
        _check_numbers(name, entry)
    _check_facts(site, reply.facts, expected)


def _check_size(reply: Message, weights: Mapping[str, Tensor]) -> None:
    found = sum(n_bytes(entry) for group in (reply.weights, reply.tensors) for entry in group.values())
    most = MAX_MODELS * sum(n_bytes(entry) for entry in weights.values()) + EXTRA_BYTES
    if found > most:
        raise InvalidReply(f"has {found:,} bytes, where at most {most:,} are expected")
    if (n_entries := len(reply.weights) + len(reply.tensors)) > MAX_ENTRIES:
        raise InvalidReply(f"has {n_entries:,} entries, where at most {MAX_ENTRIES:,} are expected")


def _check_numbers(name: str, entry: Tensor) -> None:
    if entry.dtype not in NUMBERS:
        raise InvalidReply(f"holds {entry.dtype} in '{name}', where real numbers are expected")
    if not entry.numel():
        return
    low, high = (float(end) for end in torch.aminmax(entry))  # either is NaN where one number is
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InvalidReply(f"is not finite (first in '{name}')", DIVERGED)
    if (largest := max(-low, high)) > MAX_NUMBER:
        raise InvalidReply(f"is too large to compute with ({largest:.0e} in '{name}')", DIVERGED)


def _check_facts(site: str, facts: Mapping[str, Any], expected: Expected) -> None:
    if expected.kind == "train":
        _check_examples(facts.get("examples"), expected.examples.get(site))
        if not _is_number(facts.get("loss")):
            raise InvalidReply(
                f"has the loss {reprlib.repr(facts.get('loss'))}, where a finite number is expected", DIVERGED
            )
        if type(steps := facts.get("steps")) is not int or not 1 <= steps <= MAX_STEPS:
            raise InvalidReply(f"counts {reprlib.repr(steps)} steps; expected at least 1, and at most {MAX_STEPS:,}")
    for name, fact in facts.items() if expected.kind == "validate" else ():
        if not _is_number(fact):
            raise InvalidReply(f"says that '{name}' is {reprlib.repr(fact)}, where a finite number is expected")
    try:
        size = len(json.dumps(facts, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidReply("holds facts that are no finite numbers, text or lists of them") from error
    if size > MAX_FACTS_CHARACTERS:
        raise InvalidReply(f"has facts of {size:,} characters, where at most {MAX_FACTS_CHARACTERS:,} are expected")


def _check_examples(found: object, before: int | None) -> None:
    if type(found) is not int or not 1 <= found <= MAX_EXAMPLES:
        raise InvalidReply(f"counts {reprlib.repr(found)} examples; expected at least 1, and at most {MAX_EXAMPLES:,}")
    if before is not None and found != before:
        raise InvalidReply(f"counts {found} examples, and counted {before} before")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and -MAX_NUMBER <= value <= MAX_NUMBER
