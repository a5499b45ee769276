"""Check one reply on its own: its kind and round, its size, its tensors and its facts."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from medfed.federation.checks.expected import (
    ADVICE,
    DIVERGED,
    MAX_COUNT,
    MAX_NUMBER,
    MAX_PIXELS,
    NOUNS,
    REPLY_FACTS,
    Earlier,
    Expected,
    InvalidReply,
    entry_named,
    is_number,
    range_of,
)
from medfed.federation.message import Kind, Message, n_bytes, weights_digest
from medfed.functional.weights import DTYPES

MAX_FACTS = 1000  # numbers in a reply
MAX_WEIGHT = 1e6  # no learned parameter is so large
MAX_LOSS = 1e6  # absolute value; Dice losses may be below 0
MAX_MODELS, EXTRA_BYTES = 8, 2 * 2**30  # a reply is at most this many times as large as the model, plus statistics
MAX_ENTRIES = 100_000


def check_reply(site: str, reply: Message, expected: Expected, earlier: Earlier) -> None:
    if reply.kind != expected.kind:
        raise InvalidReply(f"is of kind {reprlib.repr(str(reply.kind))}, but '{expected.kind}' was requested")
    if reply.facts.get("round", expected.round) != expected.round:
        raise InvalidReply(f"belongs to round {reprlib.repr(reply.facts['round'])}, but {expected.round} was requested")
    entries = [*reply.weights.values(), *reply.tensors.values()]
    size, max_size = (sum(map(n_bytes, tensors)) for tensors in (entries, expected.weights.values()))
    max_size = MAX_MODELS * max_size + EXTRA_BYTES
    if size > max_size or len(entries) > MAX_ENTRIES:
        raise InvalidReply(
            f"has {size:,} bytes in {len(entries):,} entries, but at most {max_size:,} bytes in {MAX_ENTRIES:,} "
            "entries are allowed; this limit follows from the size of the network, and no setting changes it"
        )
    if expected.kind != Kind.TRAIN and reply.weights:
        raise InvalidReply(f"holds {len(reply.weights)} entries of a network, but no weights were requested")
    if expected.kind in (Kind.VALIDATE, Kind.SURVEY) and reply.tensors:
        raise InvalidReply(f"holds {len(reply.tensors)} tensors, but only numbers were requested")
    for name, tensor in [*reply.weights.items(), *reply.tensors.items()]:
        _check_tensor(name, tensor, expected)
    _check_facts(reply.facts, expected, earlier.n_images.get(site))
    is_compared = expected.kind == Kind.TRAIN and expected.largest_change is not None
    if is_compared and not is_unchanged(reply, expected):
        number = earlier.rounds.get(site, {}).get(weights_digest(reply.weights), expected.round)
        if number != expected.round:
            raise InvalidReply(f"has the same weights as its update of round {number}, although the model has changed")


def _check_tensor(name: str, tensor: Tensor, expected: Expected) -> None:
    if tensor.dtype not in DTYPES.values():
        raise InvalidReply(f"holds {tensor.dtype} in '{name}', but real numbers are expected")
    low, high = (float(end) for end in torch.aminmax(tensor)) if tensor.numel() else (0.0, 0.0)  # NaN if any is NaN
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InvalidReply(f"is not finite (first in '{name}')", DIVERGED)
    if (largest := max(-low, high)) > MAX_NUMBER:
        raise InvalidReply(
            f"contains the number {largest:.0e} in '{name}'; at most {MAX_NUMBER:.0e} is allowed", DIVERGED
        )
    entry_name = entry_named(name, expected.weights)
    if entry_name in expected.parameters and largest > MAX_WEIGHT:
        raise InvalidReply(f"contains the weight {largest:.0e} in '{name}'; at most {MAX_WEIGHT:.0e} is allowed")
    is_count = entry_name and not expected.weights[entry_name].is_floating_point()
    is_positive = is_count or entry_name.endswith("running_var")
    limits = (0.0, math.inf) if is_positive else range_of(name, expected.ranges)
    if limits is None:
        return
    tolerance = 1e-4 * min(limits[1] - limits[0], 1.0)  # for rounding
    if low < limits[0] - (tolerance if limits[0] else 0) or high > limits[1] + tolerance:
        number = low if low < limits[0] else high
        text = f"at least {limits[0]:g}" if is_positive else f"from {limits[0]:g} to {limits[1]:g}"
        raise InvalidReply(f"contains the number {number:.3g} in '{name}', but numbers {text} are expected")


def _check_facts(facts: Mapping[str, Any], expected: Expected, n_images_before: int | None) -> None:
    if len(facts) > MAX_FACTS:
        raise InvalidReply(f"reports {len(facts):,} numbers, but at most {MAX_FACTS:,} are allowed")
    for name, fact in facts.items():
        if "/" in name:  # NAME/SITE is a column of the history
            raise InvalidReply(f"reports a number with the name {reprlib.repr(name)}, which must not contain '/'")
        largest = MAX_PIXELS if name == "pixels" else MAX_COUNT
        if name in NOUNS and (type(fact) is not int or not 1 <= fact <= largest):
            raise InvalidReply(
                f"reports {reprlib.repr(fact)} {NOUNS[name]}, but a whole number from 1 to {largest:,} is expected"
            )
        if not is_number(fact):
            raise InvalidReply(
                f"reports {reprlib.repr(fact)} for '{name}', but a finite number is expected",
                DIVERGED if isinstance(fact, float) else ADVICE,
            )
    if not 0 <= facts.get("score", 0) <= 1:
        raise InvalidReply(f"reports the score {facts['score']!r}, but a number from 0 to 1 is expected")
    is_train = expected.kind == Kind.TRAIN
    if expected.kind != Kind.SURVEY:  # `check_survey` knows those of a survey
        known = REPLY_FACTS[expected.kind] | {"round"} | (expected.fact_names if is_train else set())
        if unknown := sorted(facts.keys() - known):
            more = ", which is not in the fact_names of the method" if is_train else ", which was not requested"
            raise InvalidReply(f"reports {reprlib.repr(unknown[0])}{more}")
    if not is_train:
        return
    if missing := sorted(REPLY_FACTS[Kind.TRAIN] - facts.keys()):
        raise InvalidReply(f"does not report {', '.join(missing)}")
    if abs(facts["loss"]) > MAX_LOSS:
        raise InvalidReply(
            f"reports the loss {facts['loss']!r}, but a number from {-MAX_LOSS:g} to {MAX_LOSS:g} is expected", DIVERGED
        )
    n_images, n_steps = facts["examples"], facts["steps"]
    if n_images_before not in (None, n_images):
        raise InvalidReply(f"reports {n_images} training images, but {n_images_before} in an earlier round")
    planned = expected.local_epochs * math.ceil(n_images / expected.batch_size) if expected.batch_size else n_steps
    if n_steps != planned:
        raise InvalidReply(
            f"reports {n_steps:,} training steps, but {n_images:,} images in batches of {expected.batch_size} give "
            f"{planned:,} steps in {expected.local_epochs} epochs"
        )


def is_unchanged(update: Message, expected: Expected) -> bool:
    return all(
        name not in expected.parameters or name not in expected.weights or torch.equal(entry, expected.weights[name])
        for name, entry in update.weights.items()
    )
