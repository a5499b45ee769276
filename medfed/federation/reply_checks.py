"""Checks of one site's reply on its own: its kind, round, size, numbers and facts.

`medfed.federation.update_checks` calls them for each reply before it compares the replies of different sites.
"""

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
MAX_NUMBER = 1e18  # the square of a larger number could overflow float32
MAX_MODELS, EXTRA_BYTES = 8, 2 * 2**30  # a reply is at most this many times as large as the model, plus statistics
MAX_ENTRIES, MAX_FACTS_CHARACTERS = 100_000, 2**16
NUMBERS = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.uint8, torch.int8,
           torch.int16, torch.int32, torch.int64}  # fmt: skip
DIVERGED = ("training diverged at this site, so try a smaller training.learning_rate, or check its images with "
            "python -m medfed.data check")  # fmt: skip


class InvalidReply(ValueError):
    """Error of a reply that does not pass a check.

    Its arguments are the reason, as a clause whose subject is the reply, and optionally an advice to the user.
    """


@dataclass(frozen=True)
class Expected:
    """What the replies to one request are compared with.

    Attributes:
        kind: the kind of the request: "share", "train" or "validate".
        round: the round of the request.
        weights: the global weights that were sent.
        examples: dictionary from the name of a site to the number of images that the site reported in earlier rounds. A
            site that is missing here is not compared.
        parameters: the names of the entries of `weights` that are parameters. The others are buffers, such as running
            statistics.
        largest_change: the setting `federation.largest_change`: how long a site's change of the weights (its L2 norm)
            may be, as a multiple of the median over the sites. None allows any change.
        non_negative: names of tensors that have no negative numbers, such as amplitudes (`Method.non_negative`).
    """

    kind: str
    round: int
    weights: Mapping[str, Tensor]
    examples: Mapping[str, int]
    parameters: frozenset[str]
    largest_change: float | None = None
    non_negative: frozenset[str] = frozenset()


def check_reply(site: str, reply: Message, expected: Expected) -> None:
    """Check one site's reply on its own, without the replies of other sites.

    Args:
        site: the name of the site, under which `expected` holds its earlier number of images.
        reply: the reply.
        expected: the kind and round of the request, the global weights, and the earlier numbers of images.

    Raises:
        InvalidReply: if the reply has another kind or round than the request; if the reply is too large; if it contains
            NaN, infinity or an absolute value above 1e18; if a tensor of `expected.non_negative` contains a negative
            number; or if the reply contains weights or tensors that were not requested.
            A reply to "train" is also invalid without a valid number of images, number of steps and loss, or if the
            number of images differs from the number that the site reported in an earlier round. A reply to "train" or
            "validate" is also invalid if one of its facts is not a finite number.
    """
    if reply.kind != expected.kind:
        raise InvalidReply(f"is of kind {reprlib.repr(reply.kind)}, but '{expected.kind}' was requested")
    if reply.facts.get("round", expected.round) != expected.round:
        raise InvalidReply(f"belongs to round {reprlib.repr(reply.facts['round'])}, but {expected.round} was requested")
    _check_size(reply, expected.weights)
    if expected.kind != "train" and reply.weights:
        raise InvalidReply(f"holds {len(reply.weights)} entries of a network, but no weights were requested")
    if expected.kind == "validate" and reply.tensors:
        raise InvalidReply(f"holds {len(reply.tensors)} tensors, but only scores were requested")
    for name, entry in [*reply.weights.items(), *reply.tensors.items()]:
        _check_numbers(name, entry)
    for name in sorted(expected.non_negative & reply.tensors.keys()):
        if reply.tensors[name].numel() and (lowest := float(reply.tensors[name].min())) < 0:
            raise InvalidReply(f"contains the number {lowest:.3g} in '{name}', but numbers of at least 0 are expected")
    _check_facts(site, reply.facts, expected)


def _check_size(reply: Message, weights: Mapping[str, Tensor]) -> None:
    size = sum(n_bytes(entry) for group in (reply.weights, reply.tensors) for entry in group.values())
    max_size = MAX_MODELS * sum(n_bytes(entry) for entry in weights.values()) + EXTRA_BYTES
    if size > max_size:
        raise InvalidReply(f"has {size:,} bytes, but at most {max_size:,} are allowed; this limit follows from "
                           "the size of the network, and no setting changes it")
    if (n_entries := len(reply.weights) + len(reply.tensors)) > MAX_ENTRIES:
        raise InvalidReply(f"has {n_entries:,} entries, but at most {MAX_ENTRIES:,} are allowed")


def _check_numbers(name: str, entry: Tensor) -> None:
    if entry.dtype not in NUMBERS:
        raise InvalidReply(f"holds {entry.dtype} in '{name}', but real numbers are expected")
    if not entry.numel():
        return
    low, high = (float(end) for end in torch.aminmax(entry))  # both are NaN if any element is NaN
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InvalidReply(f"is not finite (first in '{name}')", DIVERGED)
    if (largest := max(-low, high)) > MAX_NUMBER:
        raise InvalidReply(
            f"contains the number {largest:.0e} in '{name}'; at most {MAX_NUMBER:.0e} is allowed", DIVERGED
        )


def _check_facts(site: str, facts: Mapping[str, Any], expected: Expected) -> None:
    if expected.kind == "train":
        _check_examples(facts.get("examples"), expected.examples.get(site))
        if not _is_number(facts.get("loss")):
            raise InvalidReply(
                f"reports the loss {reprlib.repr(facts.get('loss'))}, but a finite number is expected", DIVERGED
            )
        if type(steps := facts.get("steps")) is not int or not 1 <= steps <= MAX_STEPS:
            raise InvalidReply(
                f"reports {reprlib.repr(steps)} steps, but a whole number from 1 to {MAX_STEPS:,} is expected"
            )
    if expected.kind == "validate":
        _check_all_numbers(facts)
    try:
        size = len(json.dumps(facts, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidReply(
            "holds values that are neither tensors nor finite numbers, text, or lists of these"
        ) from error
    if size > MAX_FACTS_CHARACTERS:
        raise InvalidReply(
            f"has values that are not tensors (facts) of {size:,} characters in total, but at most "
            f"{MAX_FACTS_CHARACTERS:,} are allowed"
        )
    if expected.kind == "train":
        _check_all_numbers(facts)


def _check_all_numbers(facts: Mapping[str, Any]) -> None:
    for name, fact in facts.items():
        if not _is_number(fact):
            raise InvalidReply(f"reports {reprlib.repr(fact)} for '{name}', but a finite number is expected")


def _check_examples(n_examples: object, n_before: int | None) -> None:
    if type(n_examples) is not int or not 1 <= n_examples <= MAX_EXAMPLES:
        raise InvalidReply(
            f"reports {reprlib.repr(n_examples)} training images, but a whole number from 1 to {MAX_EXAMPLES:,} is "
            "expected"
        )
    if n_before is not None and n_examples != n_before:
        raise InvalidReply(f"reports {n_examples} training images, but {n_before} in an earlier round")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and -MAX_NUMBER <= value <= MAX_NUMBER
