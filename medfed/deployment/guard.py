"""The guard at a hospital: it checks every request before the site uses it, and every reply before the reply leaves.

All checks run at the hospital, so they protect the hospital even from a coordinator that it does not trust.
"""

from __future__ import annotations

import re
import reprlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from medfed.deployment.agreement import Agreement, Refused, counted_bytes, no_noise, too_few_patients
from medfed.federation.checks import REPLY_FACTS, is_number
from medfed.federation.image_moments import ASKED, MOMENTS, has_constants
from medfed.federation.message import Kind, Message, digest, fact_bytes, n_bytes, readable
from medfed.federation.method import NEVER, ONCE
from medfed.federation.privacy import Privacy
from medfed.federation.privacy_accounting import Releases
from medfed.functional.weights import check_same_entries, first_non_finite

KINDS = (Kind.SHARE, Kind.TRAIN, Kind.VALIDATE, Kind.END)
VALIDATION_KINDS = (Kind.VALIDATE, Kind.END)  # of a site that only validates
FACTS = frozenset({"round", "last"})  # the only facts that a request may hold; one to share also `moments`
DIGEST = re.compile("[0-9a-f]{64}")
MAX_FACT_BYTES = 32  # of the JSON text of one number
MAX_BYTES_DOWN = 2 << 30  # of statistics in one request


def _counter(request: Message) -> str:
    """Return the key under which replies to a request are counted: the moments of the images have one of their own."""
    return f"{MOMENTS if ASKED in request.facts else request.kind} {request.facts['round']}"


@dataclass
class Guard:
    """Checks every request and every reply of one site against the hospital's agreement.

    Args:
        network: the site's own state dict, with the names, shapes and dtypes that weights must have.
        local_keys: names of the entries of `network` that never leave the site.
        kinds: the kinds of requests to which the site replies.
        fact_names: names of further facts of a reply, by the kind of its request: those that the method reports with an
            update (`Method.fact_names`), and those of a survey.
        n_replies: number of replies by kind and round, such as "train 3". To continue after a restart, the program that
            uses the guard must store `n_replies`, `sent_bytes`, `sent` and `released`.
        sent_bytes: number of bytes that left, by round.
        sent: digests (hash values) of the replies that left, each together with its request, by round.
        released: the numbers of different replies with weights and with statistics that left.
    """

    agreement: Agreement
    network: Mapping[str, Tensor]
    local_keys: frozenset[str] = frozenset()
    kinds: tuple[str, ...] = KINDS
    shares: str = NEVER
    share_reads_network: bool = True
    fact_names: dict[str, frozenset[str]] = field(default_factory=dict)
    privacy: Privacy = Privacy()
    patients_advice: str = ""
    n_replies: Counter[str] = field(default_factory=Counter)
    sent_bytes: Counter[str] = field(default_factory=Counter)
    sent: dict[str, list[str]] = field(default_factory=dict)
    released: Releases = Releases()

    def check_request(self, request: Message) -> None:
        """Check a request of the coordinator, as it was received, before the site uses any of it.

        The request is refused in these cases:

        - The kind of the request is not one of `kinds`.
        - The request has other facts (named values without a shape) than `round` and `last`, or one of these two is not
          the number of an agreed round.
        - The site has already replied to this kind of request in this round as often as agreed.
        - The round of the request is more than one round before the latest round in which the site trained.
        - The request asks for a survey, but round 1 is over.
        - The request asks for shared statistics, but the method shares none in this round; or for the moments of the
          images, but the plan does not need them.
        - The weights do not fit the network.
        - A statistic comes with another request than one to train, is not finite, or the statistics are too large.
        - The agreement limits epsilon, but the plan adds no noise to what the reply would contain.
        """
        if request.kind not in self.kinds:
            raise Refused(
                f"was asked to '{request.kind}', but agreed to "
                f"{', '.join(self.kinds) + ' only' if self.kinds else 'nothing'} (agrees.requests)"
            )
        self._check_facts(request)
        number = request.facts["round"]
        if ASKED in request.facts:
            if not has_constants(self.network) or number > 1:
                raise Refused(
                    f"was asked for the moments of its images in round {number}, but the agreed plan needs "
                    "them only before round 1, and only if data.standardise is dataset"
                )
        elif request.kind == Kind.SURVEY and number > 1:
            raise Refused(f"was asked for a survey in round {number}, but agreed to one before round 1 only")
        elif request.kind == Kind.SHARE and (self.shares == NEVER or (self.shares == ONCE and number > 1)):
            when = "never shares" if self.shares == NEVER else "shares before round 1 only"
            raise Refused(f"was asked to share in round {number}, but the agreed method {when}")
        latest = max((int(key.split()[1]) for key in self.n_replies if key.startswith("train ")), default=0)
        if number < latest - 1:
            raise Refused(
                f"was asked to {request.kind} in round {number}, but has already trained in round "
                f"{latest}, and a coordinator repeats at most the round before the latest"
            )
        n_replies = self.n_replies[_counter(request)]
        if n_replies >= self.agreement.replies_per_round:
            raise Refused(f"was asked to {request.kind} in round {number} more than {n_replies} times")
        self._check_weights(request)
        if request.tensors and request.kind != Kind.TRAIN:
            raise Refused(f"was sent statistics with a request to '{request.kind}', which has none")
        if (size := sum(map(n_bytes, request.tensors.values()))) > MAX_BYTES_DOWN:
            raise Refused(f"was sent {size / 2**20:.0f} MiB of statistics, but accepts at most {MAX_BYTES_DOWN >> 20}")
        if name := first_non_finite(request.tensors):
            raise Refused(f"was sent the statistic '{name}', which is not finite")
        releases: dict[str, Releases] = {Kind.TRAIN: Releases(weights=1), Kind.SHARE: Releases(statistics=1)}
        planned = releases.get(request.kind, Releases())
        if self.agreement.max_epsilon is not None and (why := no_noise(self.privacy, planned)):
            raise Refused(f"was asked to {request.kind}, but {why}")

    def check_reply(self, request: Message, reply: Message, n_patients: Mapping[str, int]) -> None:
        """Check a reply to an accepted request before it leaves, and count it; raise Refused if it must not be sent.

        Refused are an entry of the network that must stay at the site, a statistic that the hospital did not agree to
        send or that too few patients are behind, a fact that such a reply does not have or that is not one number, and
        a reply with which the bytes of this round or epsilon would be larger than agreed. `n_patients` is
        `Site.n_patients`; a missing statistic counts as one of a single patient.
        """
        number = request.facts["round"]
        if unknown := sorted(set(reply.weights) - (set(self.network) - self.local_keys)):
            raise Refused(f"'{unknown[0]}' was about to leave, but weights of that name were not agreed to")
        if unknown := [name for name in reply.tensors if not self.agreement.allows(name)]:
            agreed = ", ".join(self.agreement.sends) or "none"
            raise Refused(f"'{unknown[0]}' was about to leave, but the agreed statistics are {agreed}")
        self._check_reply_facts(request, reply)
        self._check_patients(reply, n_patients)
        key = digest(request.to_bytes()) + digest(reply.to_bytes())
        if key not in self.sent.get(str(number), []):
            size = counted_bytes(readable(reply))
            self._check_bytes(number, size)
            released = self._check_epsilon(number, reply)
            self.sent_bytes[str(number)] += size
            self.released = released
            # Requests of earlier rounds are refused, so that their digests are no longer needed.
            self.sent = {earlier: keys for earlier, keys in self.sent.items() if int(earlier) >= number - 1}
            self.sent.setdefault(str(number), []).append(key)
        self.n_replies[_counter(request)] += 1

    def _check_reply_facts(self, request: Message, reply: Message) -> None:
        known = REPLY_FACTS[request.kind] | self.fact_names.get(request.kind, frozenset())
        if ASKED not in request.facts:
            known -= REPLY_FACTS[Kind.SHARE]
        kind = f"a reply to '{request.kind}'"
        named = {"weights_digest": reply.weights_digest} if reply.weights_digest else {}
        for name, fact in {**reply.facts, **named}.items():
            if name not in known:
                agreed = ", ".join(sorted(known)) or "none"
                raise Refused(
                    f"the fact {reprlib.repr(name)} was about to leave, but the facts of {kind} are {agreed}",
                    f"a fact that {kind} does not have was about to leave; its facts are {agreed}",
                )
            if not is_number(fact) or fact_bytes(fact) > MAX_FACT_BYTES:
                raise Refused(
                    f"the fact '{name}' was about to leave with a value of type {type(fact).__name__}, but a "
                    f"fact is one finite number of at most {MAX_FACT_BYTES} characters"
                )

    def _check_patients(self, reply: Message, n_patients: Mapping[str, int]) -> None:
        """Refuse statistics of fewer patients than the hospital allows."""
        least = self.agreement.min_patients
        for name in reply.tensors:
            if (n := n_patients.get(name, 1)) < least:
                raise Refused(
                    too_few_patients(name, n, least, self.patients_advice),
                    f"the statistic '{name}' is computed from fewer patients than the hospital agreed to"
                    f"{f'; {self.patients_advice}' if self.patients_advice else ''}",
                )

    def _check_epsilon(self, number: int, reply: Message) -> Releases:
        """Return the numbers of messages that have left after this reply."""
        before = self.released
        after = Releases(before.weights + bool(reply.weights), before.statistics + bool(reply.tensors))
        limit = self.agreement.max_epsilon
        if limit is None or after == before:
            return after
        if why := no_noise(self.privacy, after):
            raise Refused(f"a reply was refused in round {number}: {why}")
        spent, needed = (self.agreement.epsilon(self.privacy, released) for released in (before, after))
        if needed > limit:
            raise Refused(
                f"a reply was refused in round {number}: epsilon {spent:.4g} is spent (delta "
                f"{self.agreement.delta:g}), the reply would add {needed - spent:.4g}, and the agreement "
                f"allows {limit:g}; ask the coordinator to end the federation with the rounds so far, or "
                "increase agrees.max_epsilon in the site file if you agree"
            )
        return after

    def _check_bytes(self, number: int, size: int) -> None:
        """Refuse to send more bytes in the round `number` than the hospital agreed to."""
        limit = self.agreement.megabytes_per_round * 1e6
        if self.sent_bytes[str(number)] + size > limit:
            raise Refused(
                f"a reply of {size / 1e6:.3g} MB was refused in round {number}: "
                f"{self.sent_bytes[str(number)] / 1e6:.3g} MB were already sent in this round, and the "
                f"agreement allows {limit / 1e6:g} MB; to allow more, increase agrees.megabytes_per_round in "
                "the site file"
            )

    def _check_facts(self, request: Message) -> None:
        if not isinstance(request.facts, dict):
            raise Refused(f"was sent the values of a request as {type(request.facts).__name__}; expected a dictionary")
        known = FACTS | {ASKED} if request.kind == Kind.SHARE else FACTS
        if unknown := sorted(set(request.facts) - known):
            raise Refused(
                f"was sent a request with the unknown value '{unknown[0]}', but only the values "
                f"{' and '.join(sorted(FACTS))} are allowed; use the same version of medfed as the hospital"
            )
        number = request.facts.get("round")
        if any(type(fact) is not int for fact in request.facts.values()) or number is None:
            raise Refused(f"was sent the round {number!r}; expected a whole number")
        if not 1 <= number <= self.agreement.rounds:
            raise Refused(f"was sent a request of round {number}, but agreed to rounds 1 to {self.agreement.rounds}")
        last = request.facts.get("last", 0)
        end = number + (request.kind == Kind.VALIDATE)  # a round is validated with what its own training left
        if not 0 <= last < end:
            raise Refused(f"was sent {last} as its last accepted round; expected a round from 0 to {end - 1}")

    def _check_weights(self, request: Message) -> None:
        if request.weights_digest and not DIGEST.fullmatch(request.weights_digest):
            raise Refused("was sent a checksum of weights that does not have 64 hexadecimal characters")
        # The weights came with an earlier request and were checked then, or they are not needed.
        if not request.weights and (
            request.weights_digest
            or ASKED in request.facts
            or request.kind == Kind.SURVEY
            or (request.kind == Kind.SHARE and not self.share_reads_network)
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
