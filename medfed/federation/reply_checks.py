"""Checks of one site's reply on its own, before it is compared with the replies of other sites."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from medfed.federation.encoding import DTYPES
from medfed.federation.message import Kind, Message, n_bytes

MAX_EXAMPLES = 10**8  # more images than any hospital has
MAX_STEPS = 10**8
MAX_NUMBER = 1e18  # the square of a larger number could overflow float32
MAX_WEIGHT = 1e6  # no learned parameter is so large
MAX_LOSS = 1e6  # absolute value; Dice losses may be below 0
MAX_MODELS, EXTRA_BYTES = 8, 2 * 2**30  # a reply is at most this many times as large as the model, plus statistics
MAX_ENTRIES, MAX_FACTS_CHARACTERS = 100_000, 2**16
MAX_FACT_BYTES = 32  # of the JSON text of one number
# The facts that a site's reply may hold, by the kind of the request. A reply to "train" also holds those that the
# method reports (`Method.fact_names`), one to "survey" those of `medfed.federation.survey`, and a reply to "share" has
# `pixels` only with the moments of the images.
REPLY_FACTS: dict[str, frozenset[str]] = {
    Kind.SURVEY: frozenset(),
    Kind.SHARE: frozenset({"pixels"}),
    Kind.TRAIN: frozenset({"examples", "steps", "loss"}),
    Kind.VALIDATE: frozenset({"score", "boundary_distance"}),
    Kind.END: frozenset(),
}
DIVERGED = (
    "training diverged at this site, so try a smaller training.learning_rate, or check its images with "
    "python -m medfed.data check"
)


class InvalidReply(ValueError):
    """A reply does not pass a check.

    Its arguments are the reason, as a clause whose subject is the reply, and optionally an advice to the user.
    """


@dataclass(frozen=True)
class Expected:
    """What the replies to one request are compared with.

    Attributes:
        weights: the global weights that were sent.
        examples: by name of the site, the number of images that it reported in earlier rounds. A site that is missing
            here is not compared.
        parameters: the names of the entries of `weights` that are parameters; the others are buffers.
        largest_change, largest_count: the settings in `federation`.
        ranges: the lowest and the highest possible number of tensors, by name (`Method.statistic_ranges`).
        row_tensors: names of the tensors that may have another number of rows at each site (`Method.row_tensors`).
        received: by name of the site, how many times as large the statistics are that the site received with its
            request, compared with those that the median site received; at least 1 (`outliers.received_ratios`).
        local_keys: names of the entries of `weights` that stay at the sites; None if they are not known.
        batch_size: images per training step, from which the number of steps follows. 0 if it is not known, or if the
            method trains on other images than the site's own.
        momentum: the momentum of the sites' SGD, in [0, 1); 0 with another optimiser.
    """

    kind: str
    round: int
    weights: Mapping[str, Tensor]
    examples: Mapping[str, int]
    parameters: frozenset[str]
    largest_change: float | None = None
    largest_count: float = math.inf
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    row_tensors: frozenset[str] = frozenset()
    received: Mapping[str, float] = field(default_factory=dict)
    local_keys: frozenset[str] | None = None
    local_epochs: int = 1
    batch_size: int = 0
    momentum: float = 0.0


def range_of(name: str, ranges: Mapping[str, tuple[float, float]]) -> tuple[float, float] | None:
    """Return the range of a tensor, or None; a name in `ranges` that ends in "/" is the beginning of names."""
    return ranges.get(name) or next(
        (limits for start, limits in ranges.items() if start.endswith("/") and name.startswith(start)), None
    )


def entry_named(name: str, weights: Mapping[str, Tensor]) -> str:
    """Return the network entry after which a tensor is named: ENTRY for `control/ENTRY` or `0/control/ENTRY`; or ""."""
    while name not in weights and "/" in name:
        name = name.partition("/")[2]
    return name if name in weights else ""


def check_reply(site: str, reply: Message, expected: Expected) -> None:
    """Raise InvalidReply if one site's reply is invalid on its own.

    The kind and the round (if stated) must be those of the request, and the reply must not be too large or contain what
    was not requested. Numbers must be finite and at most 1e18, or 1e6 in a parameter; running variances not negative;
    tensors in their ranges; not all numbers of a parameter 0. A tensor that is named after an entry of the network,
    such as `domain/ENTRY`, has the limits of this entry. Facts of "train" and "validate" must be finite numbers;
    images, steps and loss of "train" plausible (`_check_facts`), and the score of "validate" in [0, 1].
    """
    if reply.kind != expected.kind:
        raise InvalidReply(f"is of kind {reprlib.repr(str(reply.kind))}, but '{expected.kind}' was requested")
    if reply.facts.get("round", expected.round) != expected.round:
        raise InvalidReply(f"belongs to round {reprlib.repr(reply.facts['round'])}, but {expected.round} was requested")
    _check_size(reply, expected.weights)
    if expected.kind != Kind.TRAIN and reply.weights:
        raise InvalidReply(f"holds {len(reply.weights)} entries of a network, but no weights were requested")
    if expected.kind in (Kind.VALIDATE, Kind.SURVEY) and reply.tensors:
        raise InvalidReply(f"holds {len(reply.tensors)} tensors, but only numbers were requested")
    for name, entry in reply.weights.items():
        low, high = _check_numbers(name, entry)
        _check_entry(name, name, low, high, expected)
        is_zero = name in expected.parameters and low == high == 0 and entry.dim() > 1
        if is_zero and name in expected.weights and bool(expected.weights[name].any()):
            raise InvalidReply(f"is 0 everywhere in '{name}', which no training makes of weights that were not 0")
    for name, tensor in reply.tensors.items():
        low, high = _check_numbers(name, tensor)
        _check_range(name, low, high, range_of(name, expected.ranges))
        if entry_name := entry_named(name, expected.weights):
            _check_entry(name, entry_name, low, high, expected)
    _check_facts(site, reply.facts, expected)


def _check_size(reply: Message, weights: Mapping[str, Tensor]) -> None:
    size = sum(n_bytes(entry) for group in (reply.weights, reply.tensors) for entry in group.values())
    max_size = MAX_MODELS * sum(n_bytes(entry) for entry in weights.values()) + EXTRA_BYTES
    if size > max_size:
        raise InvalidReply(
            f"has {size:,} bytes, but at most {max_size:,} are allowed; this limit follows from "
            "the size of the network, and no setting changes it"
        )
    if (n_entries := len(reply.weights) + len(reply.tensors)) > MAX_ENTRIES:
        raise InvalidReply(f"has {n_entries:,} entries, but at most {MAX_ENTRIES:,} are allowed")


def _check_entry(name: str, entry_name: str, low: float, high: float, expected: Expected) -> None:
    """Check the lowest and the highest number of an entry of the network, or of a tensor that is named after one."""
    before = expected.weights.get(entry_name)
    if entry_name in expected.parameters:
        if (largest := max(-low, high)) > MAX_WEIGHT:
            raise InvalidReply(f"contains the weight {largest:.0e} in '{name}'; at most {MAX_WEIGHT:.0e} is allowed")
    elif entry_name.endswith("running_var"):
        _check_range(name, low, high, (0.0, math.inf))
    elif before is not None and before.numel() and not before.is_floating_point():  # a counter of batches
        _check_range(name, low, high, (0.0, float(before.max()) + MAX_STEPS))


def _check_range(name: str, low: float, high: float, limits: tuple[float, float] | None) -> None:
    """Check that the lowest and the highest number of a tensor are in its range, apart from rounding."""
    if limits is None:
        return
    tolerance = 1e-4 * min(abs(limits[0] - limits[1]), 1.0)
    if low < limits[0] - (tolerance if limits[0] else 0) or high > limits[1] + tolerance:
        number = low if low < limits[0] else high
        expected = f"at least {limits[0]:g}" if math.isinf(limits[1]) else f"from {limits[0]:g} to {limits[1]:g}"
        raise InvalidReply(f"contains the number {number:.3g} in '{name}', but numbers {expected} are expected")


def _check_numbers(name: str, entry: Tensor) -> tuple[float, float]:
    """Check that all numbers of a tensor are finite and not too large; return the lowest and the highest."""
    if entry.dtype not in DTYPES.values():
        raise InvalidReply(f"holds {entry.dtype} in '{name}', but real numbers are expected")
    if not entry.numel():
        return 0.0, 0.0
    low, high = (float(end) for end in torch.aminmax(entry))  # both are NaN if any element is NaN
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InvalidReply(f"is not finite (first in '{name}')", DIVERGED)
    if (largest := max(-low, high)) > MAX_NUMBER:
        raise InvalidReply(
            f"contains the number {largest:.0e} in '{name}'; at most {MAX_NUMBER:.0e} is allowed", DIVERGED
        )
    return low, high


def _check_facts(site: str, facts: Mapping[str, Any], expected: Expected) -> None:
    if expected.kind == Kind.TRAIN:
        _check_examples(facts.get("examples"), expected.examples.get(site))
        loss: Any = facts.get("loss")
        if not is_number(loss) or abs(loss) > MAX_LOSS:
            raise InvalidReply(
                f"reports the loss {reprlib.repr(loss)}, but a number from {-MAX_LOSS:g} to {MAX_LOSS:g} is expected",
                DIVERGED,
            )
        if type(steps := facts.get("steps")) is not int or not 1 <= steps <= MAX_STEPS:
            raise InvalidReply(
                f"reports {reprlib.repr(steps)} steps, but a whole number from 1 to {MAX_STEPS:,} is expected"
            )
        _check_planned_steps(facts["examples"], steps, expected)
    if expected.kind == Kind.VALIDATE:
        _check_all_numbers(facts)
        if not 0 <= facts.get("score", 0) <= 1:
            raise InvalidReply(f"reports the score {facts['score']!r}, but a number from 0 to 1 is expected")
    for name in ("examples", "pixels"):
        if expected.kind == Kind.SHARE and name in facts and (type(facts[name]) is not int or facts[name] < 1):
            raise InvalidReply(f"reports {reprlib.repr(facts[name])} {name}, but a whole number above 0 is expected")
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
    if expected.kind in (Kind.TRAIN, Kind.SURVEY):
        _check_all_numbers(facts)


def _check_all_numbers(facts: Mapping[str, Any]) -> None:
    for name, fact in facts.items():
        if "/" in name:  # NAME/SITE is a column of the history
            raise InvalidReply(f"reports a number with the name {reprlib.repr(name)}, which must not contain '/'")
        if not is_number(fact):
            raise InvalidReply(f"reports {reprlib.repr(fact)} for '{name}', but a finite number is expected")


def _check_examples(n_examples: object, n_before: int | None) -> None:
    if type(n_examples) is not int or not 1 <= n_examples <= MAX_EXAMPLES:
        raise InvalidReply(
            f"reports {reprlib.repr(n_examples)} training images, but a whole number from 1 to {MAX_EXAMPLES:,} is "
            "expected"
        )
    if n_before is not None and n_examples != n_before:
        raise InvalidReply(f"reports {n_examples} training images, but {n_before} in an earlier round")


def _check_planned_steps(n_images: int, steps: int, expected: Expected) -> None:
    """Check that the number of steps is the one that follows from the number of images, if the batch size is known."""
    if expected.batch_size:
        planned = expected.local_epochs * math.ceil(n_images / expected.batch_size)
        if steps != planned:
            raise InvalidReply(
                f"reports {steps:,} training steps, but {n_images:,} images in batches of {expected.batch_size} give "
                f"{planned:,} steps in {expected.local_epochs} epochs"
            )


def is_number(value: object) -> bool:
    """Return whether a fact is a finite number with an absolute value of at most 1e18."""
    return isinstance(value, int | float) and type(value) is not bool and -MAX_NUMBER <= value <= MAX_NUMBER
