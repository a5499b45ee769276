"""Checks of the sites' replies before they count: pure functions of the request and of one round's replies."""

from __future__ import annotations

import json
import math
import reprlib
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from medfed.core.errors import UserError
from medfed.federation.message import FAILED, Message, n_bytes
from medfed.functional.aggregation import change_length
from medfed.functional.weights import check_same_entries

Replies = dict[str, Message]

WORDS = {"share": "share", "train": "update", "validate": "score"}
MAX_EXAMPLES = 10**8  # more images than any hospital has
MAX_STEPS = 10**8
MAX_NUMBER = 1e18  # float32 can hold its square, and no more
MAX_MODELS, EXTRA_BYTES = 8, 2 * 2**30  # a reply is at most this many times the model, plus statistics
MAX_ENTRIES, MAX_FACTS_CHARACTERS = 100_000, 2**16
MAX_REASON_CHARACTERS = 300
NUMBERS = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.uint8, torch.int8,
           torch.int16, torch.int32, torch.int64}  # fmt: skip
DIVERGED = ("training diverged there, try a smaller training.learning_rate or look at the site's images with "
            "python -m medfed.data check")  # fmt: skip
ADVICE = "look into it there, or set federation.on_bad_update to drop to go on without it"


@dataclass(frozen=True)
class Rejection:
    """Why a reply does not count.

    reason: the rest of a sentence that begins with the site and what it sent.
    advice: what to try.
    is_bad: false where nothing came that could be checked.
    """

    site: str
    round: int
    kind: str
    reason: str
    advice: str = ADVICE
    is_bad: bool = True

    def __str__(self) -> str:
        return f"{self.site}: its {WORDS[self.kind]} of round {self.round} {self.reason}"


class _Invalid(ValueError):
    """(reason), or (reason, advice)."""


@dataclass(frozen=True)
class Expected:
    """What the replies of one exchange are compared with.

    weights: the global weights.
    examples: how many images each site counted in earlier rounds, where that is known.
    largest_change: `federation.largest_change`.
    parameters: the entries of `weights` that are parameters; the others are buffers, such as running statistics.
    """

    kind: str
    round: int
    weights: Mapping[str, Tensor]
    examples: Mapping[str, int]
    largest_change: float | None = None
    parameters: frozenset[str] = frozenset()


def validate_replies(
    asked: Mapping[str, Message], replies: Mapping[str, Message], expected: Expected
) -> tuple[Replies, list[Rejection]]:
    """The replies that count, and why the others do not; both in the order of the sites' names.

    Validate each reply on its own, then compare shapes across sites, then flag outlying update norms. What a method
    sends may differ from site to site in its names and in the first dimension (classes, images), but not in the
    others; a tensor that is named like an entry of the network (`control/ENTRY`) has that entry's shape.
    """
    rejected = [_rejection(site, expected, "did not come", is_bad=False) for site in asked if site not in replies]
    accepted: Replies = {}
    for site in sorted(replies):
        if replies[site].kind == FAILED:
            why = str(replies[site].facts.get("why", "no reason given"))[:MAX_REASON_CHARACTERS]
            rejected.append(_rejection(site, expected, f"did not come: {why}", is_bad=False))
        elif site not in asked:
            rejected.append(_rejection(site, expected, "came, and was not asked for", is_bad=False))
        else:
            try:
                _check_alone(site, replies[site], expected)
                accepted[site] = replies[site]
            except _Invalid as invalid:
                rejected.append(_rejection(site, expected, *invalid.args))
    for find_invalid in (_wrong_entries, _unlike_other_sites, _norm_outliers) if accepted else ():
        invalid_sites = find_invalid(accepted, expected)
        rejected += [_rejection(site, expected, reason) for site, reason in invalid_sites.items()]
        accepted = {site: reply for site, reply in accepted.items() if site not in invalid_sites}
    return accepted, sorted(rejected, key=lambda rejection: rejection.site)


def find_failing_sites(
    step: Callable[[Replies], Any], replies: Replies, kind: str, number: int
) -> list[Rejection]:
    """The sites whose reply alone makes `step` fail, although it passed the checks; none if every site's reply does.

    Only to be called after `step` failed with all replies. If each reply alone makes it fail, the sites are not the
    cause.
    """
    failing = []
    for site, reply in replies.items():
        try:
            step({site: reply})
        except UserError:
            pass  # a sentence of the method's own
        except Exception as error:
            reason = f"is nothing that the method can use ({type(error).__name__}: {reprlib.repr(str(error))})"
            failing.append(Rejection(site, number, kind, reason))
    return failing if len(failing) < len(replies) else []


def _rejection(site: str, expected: Expected, reason: str, advice: str = ADVICE, is_bad: bool = True) -> Rejection:
    return Rejection(site, expected.round, expected.kind, reason, advice, is_bad)


def _check_alone(site: str, reply: Message, expected: Expected) -> None:
    """Raise _Invalid for what is wrong whatever the other sites sent."""
    if reply.kind != expected.kind:
        raise _Invalid(f"is of kind {reprlib.repr(reply.kind)}, where '{expected.kind}' was asked for")
    if reply.facts.get("round", expected.round) != expected.round:
        raise _Invalid(f"says that it is of round {reprlib.repr(reply.facts['round'])}")
    _check_size(reply, expected.weights)
    if expected.kind != "train" and reply.weights:
        raise _Invalid(f"holds {len(reply.weights)} entries of a network, which nobody asked for")
    if expected.kind == "validate" and reply.tensors:
        raise _Invalid(f"holds {len(reply.tensors)} tensors, which nobody asked for")
    for name, entry in [*reply.weights.items(), *reply.tensors.items()]:
        _check_numbers(name, entry)
    _check_facts(site, reply.facts, expected)


def _check_size(reply: Message, weights: Mapping[str, Tensor]) -> None:
    found = sum(n_bytes(entry) for group in (reply.weights, reply.tensors) for entry in group.values())
    most = MAX_MODELS * sum(n_bytes(entry) for entry in weights.values()) + EXTRA_BYTES
    if found > most:
        raise _Invalid(f"has {found:,} bytes, where at most {most:,} are expected")
    if (n_entries := len(reply.weights) + len(reply.tensors)) > MAX_ENTRIES:
        raise _Invalid(f"has {n_entries:,} entries, where at most {MAX_ENTRIES:,} are expected")


def _check_numbers(name: str, entry: Tensor) -> None:
    if entry.dtype not in NUMBERS:
        raise _Invalid(f"holds {entry.dtype} in '{name}', where real numbers are expected")
    if not entry.numel():
        return
    low, high = (float(end) for end in torch.aminmax(entry))  # either is NaN where one number is
    if not (math.isfinite(low) and math.isfinite(high)):
        raise _Invalid(f"is not finite (first in '{name}')", DIVERGED)
    if (largest := max(-low, high)) > MAX_NUMBER:
        raise _Invalid(f"is too large to compute with ({largest:.0e} in '{name}')", DIVERGED)


def _check_facts(site: str, facts: Mapping[str, Any], expected: Expected) -> None:
    if expected.kind == "train":
        _check_examples(facts.get("examples"), expected.examples.get(site))
        if not _is_number(facts.get("loss")):
            raise _Invalid(
                f"has the loss {reprlib.repr(facts.get('loss'))}, where a finite number is expected", DIVERGED
            )
        if type(steps := facts.get("steps")) is not int or not 1 <= steps <= MAX_STEPS:
            raise _Invalid(f"counts {reprlib.repr(steps)} steps; expected at least 1, and at most {MAX_STEPS:,}")
    for name, fact in facts.items() if expected.kind == "validate" else ():
        if not _is_number(fact):
            raise _Invalid(f"says that '{name}' is {reprlib.repr(fact)}, where a finite number is expected")
    try:
        size = len(json.dumps(facts, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise _Invalid("holds facts that are no finite numbers, text or lists of them") from error
    if size > MAX_FACTS_CHARACTERS:
        raise _Invalid(f"has facts of {size:,} characters, where at most {MAX_FACTS_CHARACTERS:,} are expected")


def _check_examples(found: object, before: int | None) -> None:
    if type(found) is not int or not 1 <= found <= MAX_EXAMPLES:
        raise _Invalid(f"counts {reprlib.repr(found)} examples; expected at least 1, and at most {MAX_EXAMPLES:,}")
    if before is not None and found != before:
        raise _Invalid(f"counts {found} examples, and counted {before} before")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and -MAX_NUMBER <= value <= MAX_NUMBER


def _wrong_entries(replies: Replies, expected: Expected) -> dict[str, str]:
    """Updates with other entries than at least half of the sites sent, or of another shape or dtype than the network's.

    Which entries stay at the sites is known to them alone.
    """
    if expected.kind != "train":
        return {}
    sent = Counter(name for reply in replies.values() for name in reply.weights)
    common = {name: entry for name, entry in expected.weights.items() if 2 * sent[name] >= len(replies)}
    if not common:
        return dict.fromkeys(replies, "does not fit the network: it holds no entry of it")
    found = {}
    for site, reply in replies.items():
        try:
            check_same_entries(common, reply.weights)
        except ValueError as error:
            found[site] = f"does not fit the network: {error}"
    return found


def _unlike_other_sites(replies: Replies, expected: Expected) -> dict[str, str]:
    """Tensors unlike those of more than half of the sites that sent them, but for their first dimension."""
    votes: dict[str, Counter] = {}
    for reply in replies.values():
        for name, tensor in reply.tensors.items():
            votes.setdefault(name, Counter())[_form(tensor)] += 1
    found = {}
    for site, reply in replies.items():
        for name, tensor in reply.tensors.items():
            entry = _entry(name, expected.weights)
            if entry is not None and entry.shape != tensor.shape:
                found[site] = f"holds '{name}' as {_shown(tensor)}, but that entry of the network is {_shown(entry)}"
            elif 2 * votes[name][_form(tensor)] <= votes[name].total():
                found[site] = f"holds '{name}' as {_shown(tensor)}, unlike that of other sites"
    return found


def _form(tensor: Tensor) -> tuple:
    """What sites have in common of a tensor."""
    return tensor.dtype, tensor.dim(), tuple(tensor.shape[1:])


def _entry(name: str, weights: Mapping[str, Tensor]) -> Tensor | None:
    """The entry of the network that a tensor is named after: `control/ENTRY`, `0/control/ENTRY`, `ENTRY`."""
    while name not in weights and "/" in name:
        name = name.partition("/")[2]
    return weights.get(name)


def _shown(entry: Tensor) -> str:
    return f"{tuple(entry.shape)} {str(entry.dtype).removeprefix('torch.')}"


def _norm_outliers(replies: Replies, expected: Expected) -> dict[str, str]:
    """Changes of more than `largest_change` times the median length. Of two, nobody can tell which is odd."""
    if expected.kind != "train" or expected.largest_change is None or len(replies) < 3:
        return {}
    lengths = {
        site: change_length(expected.weights, {n: e for n, e in reply.weights.items() if n in expected.parameters})
        for site, reply in replies.items()
    }
    median = statistics.median(lengths.values())
    return {
        site: f"changes the weights by {length:.4g}, the median of the sites is {median:.4g}, and "
        f"federation.largest_change allows {expected.largest_change:g} times that"
        for site, length in lengths.items()
        if 0 < median * expected.largest_change < length
    }
