"""Checks that the replies of a round must pass before they are used: functions of the requests and the replies only.

A rejected reply never enters the global weights; `federation.on_bad_update` and `federation.quorum` decide whether the
run stops or continues without it.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from medfed.core.errors import UserError
from medfed.federation.message import FAILED, Kind, Message, readable
from medfed.federation.outliers import (
    absurd_statistics,
    count_outliers,
    size_outliers,
    step_outliers,
    variance_outliers,
)
from medfed.federation.reply_checks import Expected, InvalidReply, check_reply, entry_named
from medfed.functional.weights import check_same_entries

RepliesBySite = dict[str, Message]

# What a reply of each kind is called.
CONTENTS: dict[str, str] = {
    Kind.SURVEY: "survey",
    Kind.SHARE: "share",
    Kind.TRAIN: "update",
    Kind.VALIDATE: "score",
}
MAX_REASON_CHARACTERS = 300
ADVICE = (
    "check the data and the log of that site, or set federation.on_bad_update to drop to continue without its reply"
)


@dataclass(frozen=True)
class Rejection:
    """Why a site's reply is not used; `str` returns one sentence that begins with the name of the site.

    Attributes:
        reason: a clause whose subject is the reply, such as "was not received".
        advice: what the user can do.
        is_bad: true if a reply was received and failed a check; false if no usable reply to this request was received.
    """

    site: str
    round: int
    kind: str
    reason: str
    advice: str = ADVICE
    is_bad: bool = True

    def __str__(self) -> str:
        return f"{self.site}: its {CONTENTS[self.kind]} of round {self.round} {self.reason}"


def validate_replies(
    requests: Mapping[str, Message], replies: Mapping[str, Message], expected: Expected
) -> tuple[RepliesBySite, list[Rejection]]:
    """Separate the replies into accepted and rejected ones, both sorted by site.

    1. A missing reply, a reply without a request, a reply that cannot be read (`Message.check`) and a failed reply are
       rejected, but not as bad (`Rejection.is_bad`).
    2. Each reply is checked on its own (`reply_checks.check_reply`).
    3. Replies are compared with the network and with each other. For a "train" request, the weights must be exactly
       those entries of the network that do not stay at the sites (if this is not known: those that at least half of the
       sites sent), with the shapes and dtypes of the global weights. A tensor whose name is or ends in the name of a
       network entry, such as `control/ENTRY`, must have the shape and dtype of this entry. Any other tensor must have
       the dtype and shape of more than half of the sites that sent a tensor of this name; only the number of rows of
       `expected.row_tensors` may differ, and is at least 1. The sites that send any tensor for "share" must send those
       with the names that more than half of them send.
    4. Numbers of images and steps, shared statistics, and the sizes of updates are compared with the median over the
       sites (`medfed.federation.outliers`).
    """
    missing = [site for site in requests if site not in replies]
    rejected = [_rejection(site, expected, "was not received", is_bad=False) for site in missing]
    accepted: RepliesBySite = {}
    for site in sorted(replies):
        reply = readable(replies[site])
        if reply.kind == FAILED:
            why = "".join(c if c.isprintable() else " " for c in reply.facts["why"][:MAX_REASON_CHARACTERS])
            rejected.append(_rejection(site, expected, f"was not received: {why}", is_bad=False))
        elif site not in requests:
            rejected.append(_rejection(site, expected, "was not requested", is_bad=False))
        else:
            try:
                check_reply(site, reply, expected)
                accepted[site] = reply
            except InvalidReply as invalid:
                rejected.append(_rejection(site, expected, *invalid.args))
    for find_invalid in COMPARISONS if accepted else ():
        invalid_sites = find_invalid(accepted, expected)
        rejected += [_rejection(site, expected, reason) for site, reason in invalid_sites.items()]
        accepted = {site: reply for site, reply in accepted.items() if site not in invalid_sites}
    return accepted, sorted(rejected, key=lambda rejection: rejection.site)


def find_failing_sites(
    step: Callable[[RepliesBySite], Any], replies: RepliesBySite, kind: str, number: int
) -> list[Rejection]:
    """Find the sites whose accepted replies make `step` fail, by calling it with the reply of one site at a time.

    A `UserError` does not count as a failure. The list is empty if `step` fails with every site, because the error is
    then in the method and not in the replies.
    """
    failing = []
    for site, reply in replies.items():
        try:
            step({site: reply})
        except UserError:
            pass  # the method refuses to work with one site, which is not an error of this site
        except Exception as error:
            reason = f"cannot be used by the method ({type(error).__name__}: {reprlib.repr(str(error))})"
            failing.append(Rejection(site, number, kind, reason))
    return failing if len(failing) < len(replies) else []


def _rejection(site: str, expected: Expected, reason: str, advice: str = ADVICE, is_bad: bool = True) -> Rejection:
    return Rejection(site, expected.round, expected.kind, reason, advice, is_bad)


def _wrong_entries(replies: RepliesBySite, expected: Expected) -> dict[str, str]:
    """Return, by site, why an update has missing or unknown network entries, or entries of another shape or dtype."""
    if expected.kind != Kind.TRAIN:
        return {}
    local = expected.local_keys
    if local is None:
        sent = Counter(name for reply in replies.values() for name in reply.weights)
        local = frozenset(name for name in expected.weights if 2 * sent[name] < len(replies))
    common = {name: entry for name, entry in expected.weights.items() if name not in local}
    if not common:
        return dict.fromkeys(replies, "does not fit the network: it holds none of the network's entries")
    reasons = {}
    for site, reply in replies.items():
        try:
            check_same_entries(common, reply.weights)
        except ValueError as error:
            reasons[site] = f"does not fit the network: {error}"
    return reasons


def _unlike_other_sites(replies: RepliesBySite, expected: Expected) -> dict[str, str]:
    """Return, by site, why a tensor's dtype or shape differs from the one that most of its senders use."""
    votes: dict[str, Counter] = {}
    for reply in replies.values():
        for name, tensor in reply.tensors.items():
            votes.setdefault(name, Counter())[_signature(name, tensor, expected)] += 1
    reasons = {}
    if expected.kind == Kind.SHARE:
        names = Counter(tuple(sorted(reply.tensors)) for reply in replies.values() if reply.tensors)
        for site, reply in replies.items():
            if reply.tensors and 2 * names[tuple(sorted(reply.tensors))] <= names.total():
                reasons[site] = f"holds {_listed(reply.tensors)}, but at most half of the sites sent these tensors"
    for site, reply in replies.items():
        for name, tensor in reply.tensors.items():
            entry = expected.weights.get(entry_named(name, expected.weights))
            if entry is not None:
                if entry.shape == tensor.shape and entry.dtype == tensor.dtype:
                    continue
                reasons[site] = f"holds '{name}' as {_format(tensor)}, but the network's entry is {_format(entry)}"
            elif name in expected.row_tensors and not (tensor.dim() and len(tensor)):
                reasons[site] = f"holds '{name}' as {_format(tensor)}, but at least one row is expected"
            elif 2 * votes[name][_signature(name, tensor, expected)] <= votes[name].total():
                reasons[site] = f"holds '{name}' as {_format(tensor)}, but at most half of the sites sent that form"
    return reasons


def _signature(name: str, tensor: Tensor, expected: Expected) -> tuple:
    """Return what must be equal at all sites: the dtype and the shape, or the shape of one row."""
    has_rows = name in expected.row_tensors or bool(entry_named(name, expected.weights))  # an entry gives the shape
    return tensor.dtype, tensor.dim(), tuple(tensor.shape[int(has_rows) :])


def _listed(names: Iterable[str]) -> str:
    """Return at most three of the names for a message."""
    listed = sorted(names)
    return ", ".join(map(reprlib.repr, listed[:3])) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


def _format(tensor: Tensor) -> str:
    """Shape and dtype as text, such as "(2, 3) float32"."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


COMPARISONS = (
    _wrong_entries,
    _unlike_other_sites,
    count_outliers,
    step_outliers,
    absurd_statistics,
    size_outliers,
    variance_outliers,
)
