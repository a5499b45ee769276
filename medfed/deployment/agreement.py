"""A hospital's agreement with a federation, and the guard that enforces it.

The hospital writes in its own file what may leave the hospital. `Guard` checks every request before the site uses it,
and every reply before the reply leaves. What the hospital did not agree to is refused, and nothing is sent. All checks
run at the hospital, so they protect the hospital even from a coordinator that it does not trust.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import ClassVar

from torch import Tensor

from medfed.core import bounds
from medfed.core.bounds import PositiveFloat, PositiveInt
from medfed.federation.image_moments import ASKED, MOMENTS, has_constants
from medfed.federation.message import Message, digest, n_bytes
from medfed.federation.method import NEVER, ONCE
from medfed.functional.weights import check_same_entries, first_non_finite

KINDS = ("share", "train", "validate", "end")
VALIDATION_KINDS = ("validate", "end")  # of a site that only validates
FACTS = frozenset({"round", "last"})  # the only facts that a request may hold; one to share also `moments`
DIGEST = re.compile("[0-9a-f]{64}")
MAX_BYTES_DOWN = 2 << 30  # of statistics in one request


class Refused(Exception):
    """Error of a request or reply that the hospital did not agree to.

    The text of the error is a clause whose subject is the hospital or a tensor, such as "was asked to share in round 2,
    but ...". The text is sent to the coordinator, and therefore contains no names of files or patients.
    """


@dataclass(frozen=True)
class Agreement:
    """What may leave a hospital, and how often: the block `agrees` of its file.

    Args:
        sends: names of the tensors that may leave in addition to weights. `*` stands for any text.
        rounds: number of training rounds; greater than 0.
        megabytes_per_round: largest total size of the replies of one round, in units of 10^6 bytes; greater than 0.
            A reply that was lost and is sent again unchanged counts once, because it reveals nothing new.
        replies_per_round: how often the site may reply to requests of one kind in a round; greater than 0. More than
            one is needed if a reply is lost and requested again.
    """

    sends: tuple[str, ...] = ()
    rounds: PositiveInt = 100
    megabytes_per_round: PositiveFloat = 100.0
    replies_per_round: PositiveInt = 3
    renamed: ClassVar[Mapping[str, str]] = {"answers_per_round": "replies_per_round"}  # keys of older files

    def __post_init__(self) -> None:
        bounds.check(self)

    def allows(self, name: str) -> bool:
        """Return whether the hospital agreed to send a shared statistic: a tensor other than the weights.

        Args:
            name: the name of the statistic, such as `mean`. The name is compared with the names in `sends`, in which
                `*` stands for any text.
        """
        return any(fnmatchcase(name, pattern) for pattern in self.sends)


def _counter(request: Message) -> str:
    """Return the key under which replies to a request are counted: the moments of the images have one of their own."""
    return f"{MOMENTS if ASKED in request.facts else request.kind} {request.facts['round']}"


@dataclass
class Guard:
    """Checks every request and every reply of one site against the hospital's agreement.

    Args:
        agreement: what the hospital agreed to.
        network: the site's own state dict, with the names, shapes and dtypes that weights must have.
        local_keys: names of the entries of `network` that never leave the site.
        kinds: the kinds of requests to which the site replies, such as "train".
        shares: when the method shares statistics (`Method.shares`).
        share_reads_network: whether the weights come with a request to share (`Method.share_reads_network`).
        n_replies: number of replies by kind and round, such as "train 3". To continue after a restart, the program that
            uses the guard must store `n_replies`, `sent_bytes` and `sent`.
        sent_bytes: number of bytes that left, by round.
        sent: digests (hash values) of the replies that left, each together with its request, by round.
    """

    agreement: Agreement
    network: Mapping[str, Tensor]
    local_keys: frozenset[str] = frozenset()
    kinds: tuple[str, ...] = KINDS
    shares: str = NEVER
    share_reads_network: bool = True
    n_replies: Counter[str] = field(default_factory=Counter)
    sent_bytes: Counter[str] = field(default_factory=Counter)
    sent: dict[str, list[str]] = field(default_factory=dict)

    def check_request(self, request: Message) -> None:
        """Check a request of the coordinator before the site uses any of it.

        The request is refused in these cases:

        - The kind of the request is not one of `kinds`.
        - The request has other facts (named values without a shape) than `round` and `last`, or one of these two is not
          the number of an agreed round.
        - The site has already replied to this kind of request in this round as often as agreed.
        - The round of the request is more than one round before the latest round in which the site trained.
        - The request asks for shared statistics, but the method shares none in this round; or for the moments of the
          images, but the plan does not need them.
        - The weights do not fit the network, a tensor is not finite, or the statistics are larger than 2 GiB.

        Args:
            request: the request, as it was received.

        Raises:
            Refused: in each of these cases. The text says why.
        """
        if request.kind not in self.kinds:
            raise Refused(f"was asked to '{request.kind}', but agreed to {', '.join(self.kinds)} only")
        self._check_facts(request)
        number = request.facts["round"]
        if ASKED in request.facts:
            if not has_constants(self.network) or number > 1:
                raise Refused(f"was asked for the moments of its images in round {number}, but the agreed plan needs "
                              "them only before round 1, and only if data.standardise is dataset")
        elif request.kind == "share" and (self.shares == NEVER or (self.shares == ONCE and number > 1)):
            when = "never shares" if self.shares == NEVER else "shares before round 1 only"
            raise Refused(f"was asked to share in round {number}, but the agreed method {when}")
        latest = max((int(key.split()[1]) for key in self.n_replies if key.startswith("train ")), default=0)
        if number < latest - 1:
            raise Refused(f"was asked to {request.kind} in round {number}, but has already trained in round "
                          f"{latest}, and a coordinator repeats at most the round before the latest")
        n_replies = self.n_replies[_counter(request)]
        if n_replies >= self.agreement.replies_per_round:
            raise Refused(f"was asked to {request.kind} in round {number} more than {n_replies} times")
        self._check_weights(request)
        if (size := sum(map(n_bytes, request.tensors.values()))) > MAX_BYTES_DOWN:
            raise Refused(f"was sent {size / 2**20:.0f} MiB of statistics, but accepts at most {MAX_BYTES_DOWN >> 20}")
        if name := first_non_finite(request.tensors):
            raise Refused(f"was sent the statistic '{name}', which is not finite")

    def check_reply(self, request: Message, reply: Message) -> None:
        """Check a reply before it leaves the hospital, and count it.

        Args:
            request: the request, which `check_request` has accepted.
            reply: the site's reply to the request.

        Raises:
            Refused: if the reply contains an entry of the network that must stay at the site, if the reply contains a
                statistic that the hospital did not agree to send, or if the replies of this round would be larger than
                agreed. A refused reply is not counted, and must not be sent.
        """
        number = request.facts["round"]
        if unknown := sorted(set(reply.weights) - (set(self.network) - self.local_keys)):
            raise Refused(f"'{unknown[0]}' was about to leave, but weights of that name were not agreed to")
        if unknown := [name for name in reply.tensors if not self.agreement.allows(name)]:
            agreed = ", ".join(self.agreement.sends) or "none"
            raise Refused(f"'{unknown[0]}' was about to leave, but the agreed statistics are {agreed}")
        key = digest(request.to_bytes()) + digest(reply.to_bytes())
        if key not in self.sent.get(str(number), []):
            entries = [*reply.weights.values(), *reply.tensors.values()]
            self._count_bytes(number, sum(map(n_bytes, entries)))
            # Requests of earlier rounds are refused, so that their digests are no longer needed.
            self.sent = {earlier: keys for earlier, keys in self.sent.items() if int(earlier) >= number - 1}
            self.sent.setdefault(str(number), []).append(key)
        self.n_replies[_counter(request)] += 1

    def _count_bytes(self, number: int, size: int) -> None:
        limit = self.agreement.megabytes_per_round * 1e6
        if self.sent_bytes[str(number)] + size > limit:
            raise Refused(f"a reply of {size / 1e6:.1f} MB was refused in round {number}: "
                          f"{self.sent_bytes[str(number)] / 1e6:.1f} MB were already sent in this round, and the "
                          f"agreement allows {limit / 1e6:g} MB; to allow more, increase agrees.megabytes_per_round in "
                          "the site file")
        self.sent_bytes[str(number)] += size

    def _check_facts(self, request: Message) -> None:
        if not isinstance(request.facts, dict):
            raise Refused(f"was sent the values of a request as {type(request.facts).__name__}; expected a dictionary")
        known = FACTS | {ASKED} if request.kind == "share" else FACTS
        if unknown := sorted(set(request.facts) - known):
            raise Refused(f"was sent a request with the unknown value '{unknown[0]}', but only the values "
                          f"{' and '.join(sorted(FACTS))} are allowed; use the same version of medfed as the hospital")
        number = request.facts.get("round")
        if any(type(fact) is not int for fact in request.facts.values()) or number is None:
            raise Refused(f"was sent the round {number!r}; expected a whole number")
        if not 1 <= number <= self.agreement.rounds:
            raise Refused(f"was sent a request of round {number}, but agreed to rounds 1 to {self.agreement.rounds}")
        last = request.facts.get("last", 0)
        end = number + (request.kind == "validate")  # a round is validated with what its own training left
        if not 0 <= last < end:
            raise Refused(f"was sent {last} as its last accepted round; expected a round from 0 to {end - 1}")

    def _check_weights(self, request: Message) -> None:
        if request.weights_digest and not DIGEST.fullmatch(request.weights_digest):
            raise Refused("was sent a checksum of weights that does not have 64 hexadecimal characters")
        # The weights came with an earlier request and were checked then, or they are not needed.
        if not request.weights and (
            request.weights_digest
            or ASKED in request.facts
            or (request.kind == "share" and not self.share_reads_network)
        ):
            return
        expected = {
            name: entry
            for name, entry in self.network.items()
            if name not in self.local_keys or name in request.weights
        }
        try:
            check_same_entries(expected, request.weights)
        except ValueError as error:
            raise Refused(f"was sent weights that do not fit its network: {error}") from error
        if name := first_non_finite(request.weights):
            raise Refused(f"was sent weights that are not finite: '{name}' contains NaN or infinite values")
