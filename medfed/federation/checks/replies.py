"""Accept or reject each reply of a round.

A rejected reply never enters a computation; `federation.on_bad_update` and `federation.quorum` decide whether the run
goes on without it. A site is compared with the median of the sites, which fewer than half of them cannot move, and only
if at least `MIN_SITES` replied. What is unusual but may be honest is named in a notice, and used.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from medfed.core.errors import UserError
from medfed.federation.checks.comparisons import COMPARISONS
from medfed.federation.checks.expected import ADVICE, CONTENTS, Earlier, Expected, InvalidReply, Replies
from medfed.federation.checks.notices import find_notices
from medfed.federation.checks.one_reply import check_reply
from medfed.federation.message import FAILED, Message, readable

MAX_REASON_CHARACTERS = 300


@dataclass(frozen=True)
class Rejection:
    """Why a site's reply is not used; `str` returns one sentence that begins with the name of the site."""

    site: str
    round: int
    kind: str
    reason: str  # a clause whose subject is the reply, such as "was not received"
    advice: str = ADVICE
    is_bad: bool = True  # a reply was received and failed a check; False if no usable reply to the request was received

    def __str__(self) -> str:
        return f"{self.site}: its {CONTENTS[self.kind]} of round {self.round} {self.reason}"


def check_replies(
    requests: Mapping[str, Message], replies: Mapping[str, Message], expected: Expected, earlier: Earlier
) -> tuple[Replies, list[Rejection], list[str]]:
    """Separate the replies into accepted and rejected ones, both sorted by site, and return notices.

    1. A missing reply, a reply without a request, a reply that cannot be read (`Message.check`) and a failed reply are
       rejected, but not as bad (`Rejection.is_bad`).
    2. A reply must be of the kind and round of its request, not too large, and without anything that was not requested.
       Its numbers must be finite, variances not negative, tensors in their ranges, counts and losses plausible. With
       `largest_change`, an update must differ from the site's updates of earlier rounds.
    3. The weights of an update must be exactly those entries of the network that do not stay at the sites, with the
       shapes and dtypes of the global weights. A tensor whose name is or ends in the name of a network entry, such as
       `control/ENTRY`, must have the shape and dtype of this entry. Any other tensor must have the dtype and shape of
       more than half of the sites that sent it; only the number of rows of `row_tensors` may differ.
    4. Numbers of images and steps, shared statistics, running means and variances, and changes are compared with the
       other sites. `earlier` then learns the accepted replies.
    """
    accepted: Replies = {}
    rejected: list[Rejection] = []

    def reject(site: str, reason: str, advice: str = ADVICE, is_bad: bool = True) -> None:
        rejected.append(Rejection(site, expected.round, expected.kind, reason, advice, is_bad))

    for site in requests.keys() - replies.keys():
        reject(site, "was not received", is_bad=False)
    for site in sorted(replies):
        reply = readable(replies[site])
        if site not in requests:
            reject(site, "was not requested", is_bad=False)
        elif reply.kind == FAILED:
            why = "".join(c if c.isprintable() else " " for c in reply.facts["why"][:MAX_REASON_CHARACTERS])
            reject(site, f"was not received: {why}", is_bad=False)
        else:
            try:
                check_reply(site, reply, expected, earlier)
                accepted[site] = reply
            except InvalidReply as invalid:
                reject(site, *invalid.args)
    for compare in COMPARISONS:
        reasons: dict[str, str] = {}
        for site, reason in compare(accepted, expected) if accepted else ():
            reasons.setdefault(site, reason)
        for site, reason in reasons.items():
            reject(site, reason)
            del accepted[site]
    notices = list(find_notices(accepted, expected, earlier))
    return accepted, sorted(rejected, key=lambda rejection: rejection.site), notices


def find_failing_sites(step: Callable[[Replies], Any], replies: Replies, kind: str, number: int) -> list[Rejection]:
    """Find the sites whose accepted replies make `step` fail, by calling it with the reply of one site at a time.

    If each reply works alone, the site is found without which the others work. A `UserError` does not count as a
    failure. The list is empty if `step` fails with every site, because the error is then in the method and not in the
    replies, and if several sites could be the cause.
    """
    alone = {site: _failure(step, {site: reply}) for site, reply in replies.items()}
    if failing := [Rejection(site, number, kind, reason) for site, reason in alone.items() if reason]:
        return failing if len(failing) < len(replies) else []
    without = {site: {other: replies[other] for other in replies if other != site} for site in replies}
    unlike = [site for site, others in without.items() if not _failure(step, others)]
    reason = "does not fit the replies of the other sites: the method cannot use them together"
    return [Rejection(site, number, kind, reason) for site in unlike] if len(unlike) == 1 else []


def _failure(step: Callable[[Replies], Any], replies: Replies) -> str:
    """Return why `step` fails, as the reason of a `Rejection`; "" if it works."""
    try:
        step(replies)
    except UserError:
        pass  # the method refuses to work with so few sites, which is not an error of a site
    except Exception as error:
        return f"cannot be used by the method ({type(error).__name__}: {reprlib.repr(str(error))})"
    return ""
