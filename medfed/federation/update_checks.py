"""Checks of the sites' replies before they count: pure functions of the request and of one round's replies."""

from __future__ import annotations

import reprlib
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from medfed.core.errors import UserError
from medfed.federation.message import FAILED, Message
from medfed.federation.reply_checks import Expected, InvalidReply, check_reply
from medfed.functional.aggregation import change_norm
from medfed.functional.weights import check_same_entries

Replies = dict[str, Message]

WORDS = {"share": "share", "train": "update", "validate": "score"}
MAX_REASON_CHARACTERS = 300
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
                check_reply(site, replies[site], expected)
                accepted[site] = replies[site]
            except InvalidReply as invalid:
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
        site: change_norm(expected.weights, {n: e for n, e in reply.weights.items() if n in expected.parameters})
        for site, reply in replies.items()
    }
    median = statistics.median(lengths.values())
    return {
        site: f"changes the weights by {length:.4g}, the median of the sites is {median:.4g}, and "
        f"federation.largest_change allows {expected.largest_change:g} times that"
        for site, length in lengths.items()
        if 0 < median * expected.largest_change < length
    }
