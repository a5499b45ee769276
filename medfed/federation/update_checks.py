"""Whether what a site answered may count: pure functions of the answers of one round, and of what was asked."""

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
from medfed.federation.message import Message, n_bytes
from medfed.functional.aggregation import change_length
from medfed.functional.weights import check_same_entries

Answers = dict[str, Message]

WORDS = {"share": "share", "train": "update", "validate": "score"}
FAILED = "failed"  # the kind of an answer that says why there is none
MOST_EXAMPLES = 10**8  # more images than any hospital has
MOST_STEPS = 10**8
LARGEST_NUMBER = 1e18  # float32 can hold its square, and no more
MOST_MODELS, ROOM_BYTES = 8, 2 * 2**30  # a message is at most so many times the model, and room for statistics
MOST_ENTRIES, MOST_FACTS_BYTES = 100_000, 2**16
MOST_WHY = 300  # letters of a reason
NUMBERS = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.uint8, torch.int8,
           torch.int16, torch.int32, torch.int64}  # fmt: skip
DIVERGED = ("training diverged there, try a smaller training.learning_rate or look at the site's images with "
            "python -m medfed.data check")  # fmt: skip
ADVICE = "look into it there, or set federation.on_bad_update to drop to go on without it"


@dataclass(frozen=True)
class Rejection:
    """Why an answer does not count.

    reason: the rest of a sentence that begins with the site and what it sent.
    advice: what to try.
    is_bad: false where nothing came that could be judged.
    """

    site: str
    round: int
    kind: str
    reason: str
    advice: str = ADVICE
    is_bad: bool = True

    def __str__(self) -> str:
        return f"{self.site}: its {WORDS[self.kind]} of round {self.round} {self.reason}"


class _Bad(ValueError):
    """(reason), or (reason, advice)."""


@dataclass(frozen=True)
class Expected:
    """What the answers of one exchange are held against.

    weights: the global ones.
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
    asked: Mapping[str, Message], answers: Mapping[str, Message], expected: Expected
) -> tuple[Answers, list[Rejection]]:
    """The answers that may count, and why the others may not, both in the order of the sites' names.

    Each answer is looked at by itself first, then those that are left beside each other, then how far they went. What
    a method sends may differ from site to site in its names and in the first dimension (classes, images), but not in
    the others; a tensor that is named like an entry of the network (`control/ENTRY`) has that entry's shape.
    """
    rejected = {site: "did not come" for site in asked if site not in answers}
    unjudged = set(rejected)
    left: Answers = {}
    advice = {}
    for site in sorted(answers):
        try:
            if answers[site].kind == FAILED or site not in asked:
                unjudged.add(site)
            if answers[site].kind == FAILED:
                raise _Bad(f"did not come: {str(answers[site].facts.get('why', 'no reason told'))[:MOST_WHY]}")
            if site not in asked:
                raise _Bad("came, and was not asked for")
            _check_alone(site, answers[site], expected)
            left[site] = answers[site]
        except _Bad as bad:
            rejected[site], *told = bad.args
            advice |= {site: told[0]} if told else {}
    for compare in (_misfits, _odd_tensors, _far) if left else ():
        found = compare(left, expected)
        rejected |= found
        left = {site: answer for site, answer in left.items() if site not in found}
    return left, [
        Rejection(site, expected.round, expected.kind, reason, advice.get(site, ADVICE), site not in unjudged)
        for site, reason in sorted(rejected.items())
    ]


def find_failing_sites(use: Callable[[Answers], Any], answers: Answers, kind: str, number: int) -> list[Rejection]:
    """The sites whose answer alone makes `use` fail, where not all do: what they sent passes, and lacks something.

    Only asked once `use` has failed with all of them. Where every site's fails it is not the sites' doing.
    """
    found = []
    for site, answer in answers.items():
        try:
            use({site: answer})
        except UserError:
            pass  # a sentence of the method's own
        except Exception as error:  # whatever it is, this site's answer makes it
            reason = f"is nothing that the method can use ({type(error).__name__}: {reprlib.repr(str(error))})"
            found.append(Rejection(site, number, kind, reason))
    return found if len(found) < len(answers) else []


def _check_alone(site: str, answer: Message, expected: Expected) -> None:
    """Raise _Bad for what is wrong whatever the other sites sent."""
    if answer.kind != expected.kind:
        raise _Bad(f"is of kind {reprlib.repr(answer.kind)}, where '{expected.kind}' was asked for")
    if answer.facts.get("round", expected.round) != expected.round:
        raise _Bad(f"says that it is of round {reprlib.repr(answer.facts['round'])}")
    _check_size(answer, expected.weights)
    if expected.kind != "train" and answer.weights:
        raise _Bad(f"holds {len(answer.weights)} entries of a network, which nobody asked for")
    if expected.kind == "validate" and answer.tensors:
        raise _Bad(f"holds {len(answer.tensors)} tensors, which nobody asked for")
    for name, entry in [*answer.weights.items(), *answer.tensors.items()]:
        _check_numbers(name, entry)
    _check_facts(site, answer.facts, expected)


def _check_size(answer: Message, weights: Mapping[str, Tensor]) -> None:
    found = sum(n_bytes(entry) for group in (answer.weights, answer.tensors) for entry in group.values())
    most = MOST_MODELS * sum(n_bytes(entry) for entry in weights.values()) + ROOM_BYTES
    if found > most:
        raise _Bad(f"has {found:,} bytes, where at most {most:,} are expected")
    if (n_entries := len(answer.weights) + len(answer.tensors)) > MOST_ENTRIES:
        raise _Bad(f"has {n_entries:,} entries, where at most {MOST_ENTRIES:,} are expected")


def _check_numbers(name: str, entry: Tensor) -> None:
    if entry.dtype not in NUMBERS:
        raise _Bad(f"holds {entry.dtype} in '{name}', where real numbers are expected")
    if not entry.numel():
        return
    low, high = (float(end) for end in torch.aminmax(entry))  # either is NaN where one number is
    if not (math.isfinite(low) and math.isfinite(high)):
        raise _Bad(f"is not finite (first in '{name}')", DIVERGED)
    if (largest := max(-low, high)) > LARGEST_NUMBER:
        raise _Bad(f"is too large to compute with ({largest:.0e} in '{name}')", DIVERGED)


def _check_facts(site: str, facts: Mapping[str, Any], expected: Expected) -> None:
    if expected.kind == "train":
        _check_examples(facts.get("examples"), expected.examples.get(site))
        if not _is_number(facts.get("loss")):
            raise _Bad(f"has the loss {reprlib.repr(facts.get('loss'))}, where a finite number is expected", DIVERGED)
        if type(steps := facts.get("steps")) is not int or not 1 <= steps <= MOST_STEPS:
            raise _Bad(f"counts {reprlib.repr(steps)} steps; expected at least 1, and at most {MOST_STEPS:,}")
    for name, fact in facts.items() if expected.kind == "validate" else ():
        if not _is_number(fact):
            raise _Bad(f"says that '{name}' is {reprlib.repr(fact)}, where a finite number is expected")
    try:
        size = len(json.dumps(facts, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise _Bad("holds facts that are no finite numbers, text or lists of them") from error
    if size > MOST_FACTS_BYTES:
        raise _Bad(f"has facts of {size:,} characters, where at most {MOST_FACTS_BYTES:,} are expected")


def _check_examples(found: object, before: int | None) -> None:
    if type(found) is not int or not 1 <= found <= MOST_EXAMPLES:
        raise _Bad(f"counts {reprlib.repr(found)} examples; expected at least 1, and at most {MOST_EXAMPLES:,}")
    if before is not None and found != before:
        raise _Bad(f"counts {found} examples, and counted {before} before")


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and -LARGEST_NUMBER <= value <= LARGEST_NUMBER


def _misfits(answers: Answers, expected: Expected) -> dict[str, str]:
    """Updates with other entries than at least half of the sites sent, or of another shape or dtype than the network's.

    Which entries stay at the sites is known to them alone.
    """
    if expected.kind != "train":
        return {}
    sent = Counter(name for answer in answers.values() for name in answer.weights)
    common = {name: entry for name, entry in expected.weights.items() if 2 * sent[name] >= len(answers)}
    if not common:
        return dict.fromkeys(answers, "does not fit the network: it holds no entry of it")
    found = {}
    for site, answer in answers.items():
        try:
            check_same_entries(common, answer.weights)
        except ValueError as error:
            found[site] = f"does not fit the network: {error}"
    return found


def _odd_tensors(answers: Answers, expected: Expected) -> dict[str, str]:
    """Tensors unlike those of more than half of the sites that sent them, but for their first dimension."""
    votes: dict[str, Counter] = {}
    for answer in answers.values():
        for name, tensor in answer.tensors.items():
            votes.setdefault(name, Counter())[_form(tensor)] += 1
    found = {}
    for site, answer in answers.items():
        for name, tensor in answer.tensors.items():
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


def _far(answers: Answers, expected: Expected) -> dict[str, str]:
    """Changes of more than `largest_change` times the median length. Of two, nobody can tell which is odd."""
    if expected.kind != "train" or expected.largest_change is None or len(answers) < 3:
        return {}
    lengths = {
        site: change_length(expected.weights, {n: e for n, e in answer.weights.items() if n in expected.parameters})
        for site, answer in answers.items()
    }
    median = statistics.median(lengths.values())
    return {
        site: f"changes the weights by {length:.4g}, the median of the sites is {median:.4g}, and "
        f"federation.largest_change allows {expected.largest_change:g} times that"
        for site, length in lengths.items()
        if 0 < median * expected.largest_change < length
    }
