"""The guard at a hospital: it checks every request before the site uses it, and every reply before the reply leaves.

All checks run at the hospital, so they protect the hospital even from a coordinator that it does not trust.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from medfed.core.errors import UserErrors
from medfed.deployment.agreement import TRAIN, Agreement, Outgoing, Refused
from medfed.deployment.hospital_state import SentReply, count_releases
from medfed.federation.checks.expected import REPLY_FACTS, is_number
from medfed.federation.image_moments import ASKED, MOMENTS, has_constants
from medfed.federation.message import Kind, Message, digest, fact_bytes, n_bytes
from medfed.federation.method import EVERY_ROUND, NEVER, ONCE, Method
from medfed.federation.privacy import Privacy
from medfed.federation.privacy_accounting import Releases, epsilon, require_accountant
from medfed.federation.site import Site
from medfed.federation.survey import SiteSurvey, fact_names
from medfed.federation.validation_site import ValidationSite
from medfed.functional.weights import check_same_entries, first_non_finite

FACTS = frozenset({"round", "last"})  # the only facts that a request may hold; one to share also `moments`
MAX_LISTED = 5  # names in an error message


@dataclass
class Guard:
    """Checks every request and every reply of one site against the hospital's agreement; so does the dry run."""

    agreement: Agreement
    site: Site | ValidationSite
    replies: list[SentReply] = field(default_factory=list)  # that have left; the program must store them

    def __post_init__(self) -> None:
        site = self.site
        self.network = site.network.state_dict()
        self.survey = agreed_survey(site, self.agreement)
        self.kinds: list[str] = [Kind.VALIDATE, Kind.END]
        self.local_keys, self.method, self.privacy = frozenset[str](), Method(), Privacy()
        if isinstance(site, Site):
            self.kinds = [Kind.SHARE, Kind.TRAIN, *self.kinds]
            self.local_keys, self.method, self.privacy = site.local_keys, site.method, site.privacy
        if TRAIN not in self.agreement.requests:
            self.kinds = []
        if self.survey:
            self.kinds = [Kind.SURVEY, *self.kinds]

    def check_request(self, request: Message) -> None:
        """Check a request of the coordinator, as it was received, before the site uses any of it."""
        kind = request.kind
        if kind not in self.kinds:
            agreed = f"{', '.join(self.kinds)} only" if self.kinds else "nothing"
            raise Refused(f"was asked to '{kind}', but agreed to {agreed} (agrees.requests)")
        number = self._check_numbers(request)
        asks_moments, shares = ASKED in request.facts, self.method.shares
        asked = f"was asked {'for the moments of its images' if asks_moments else f'to {kind}'} in round {number}"
        if kind == Kind.SHARE and (not has_constants(self.network) if asks_moments else shares == NEVER):
            raise Refused(f"{asked}, but the agreed plan never does this")
        is_once = asks_moments or kind == Kind.SURVEY or (kind == Kind.SHARE and shares == ONCE)
        if is_once and number > 1:
            raise Refused(f"{asked}, but the agreed plan does this before round 1 only")
        if number < (latest := max((reply.round for reply in self.replies), default=0)) - 1:
            raise Refused(
                f"{asked}, but has already replied in round {latest}, and a coordinator repeats at most the round "
                "before the latest"
            )
        limit = self.agreement.replies_per_round
        if sum(reply[:2] == (number, _what(request)) for reply in self.replies) >= limit:
            raise Refused(f"{asked} more than {limit} times (agrees.replies_per_round)")
        if request.tensors and kind != Kind.TRAIN:
            raise Refused(f"was sent statistics with a request to '{kind}', which has none")
        reads_images_only = asks_moments or kind == Kind.SURVEY
        reads_images_only |= kind == Kind.SHARE and not self.method.share_reads_network
        self._check_tensors(request, needs_weights=not reads_images_only)

    def _check_numbers(self, request: Message) -> int:
        """Check the facts of a request; return its round."""
        facts = request.facts
        if unknown := sorted(facts.keys() - FACTS - ({ASKED} if request.kind == Kind.SHARE else set())):
            raise Refused(
                f"was sent a request with the unknown value '{unknown[0]}', but only the values "
                f"{' and '.join(sorted(FACTS))} are allowed; use the same version of medfed as the hospital"
            )
        for name in ("round", *facts):
            if type(facts.get(name)) is not int:
                raise Refused(f"was sent {facts.get(name)!r} as '{name}'; expected a whole number")
        number, last = facts["round"], facts.get("last", 0)
        if not 1 <= number <= self.agreement.rounds:
            raise Refused(f"was sent a request of round {number}, but agreed to rounds 1 to {self.agreement.rounds}")
        end = number + (request.kind == Kind.VALIDATE)  # a round is validated with what its own training left
        if not 0 <= last < end:
            raise Refused(f"was sent {last} as its last accepted round; expected a round from 0 to {end - 1}")
        return int(number)

    def _check_tensors(self, request: Message, needs_weights: bool) -> None:
        """Check weights and statistics; weights of which only the checksum is sent were checked when they came."""
        if request.weights or (needs_weights and not request.weights_digest):
            optional = self.local_keys - request.weights.keys()
            expected = {name: entry for name, entry in self.network.items() if name not in optional}
            try:
                check_same_entries(expected, request.weights)
            except ValueError as error:
                raise Refused(f"was sent weights that do not fit its network: {error}") from error
        if name := first_non_finite(request.weights) or first_non_finite(request.tensors):
            raise Refused(f"was sent '{name}', which contains NaN or infinite values")

    def check_reply(self, request: Message, reply: Message, n_patients: Mapping[str, int]) -> None:
        """Check a reply to an accepted request before it leaves, and count it; raise Refused if it must not be sent.

        `n_patients` is `Site.n_patients`; a missing statistic counts as one of a single patient. An equal reply to an
        equal request, as after a lost reply, adds neither bytes nor epsilon.
        """
        number, checksum = request.facts["round"], digest(request.to_bytes(), reply.to_bytes())
        noise = self.privacy.noise if reply.weights else None
        statistics_noise = self.privacy.statistics_noise if reply.tensors else None
        new = SentReply(number, _what(request), checksum, _counted_bytes(reply), noise, statistics_noise)
        replies = [*self.replies, new]
        in_round = {one.checksum: one.n_bytes for one in replies if one.round == number}
        released = count_releases(replies)
        if released == count_releases(self.replies):
            released = Releases()
        for refused in self._refusals([Outgoing(reply, n_patients)], sum(in_round.values()), released):
            raise refused
        self.replies = replies

    def check_plan(self, sent: Sequence[Outgoing], file: str) -> None:
        """Raise UserError, with one sentence for each mistake, if the replies of a dry run exceed the agreement.

        `file` is the hospital's file.
        """
        size = sum(_counted_bytes(reply) for reply, _ in sent)
        if refusals := list(self._refusals(sent, size, self.planned_releases(sent))):
            raise UserErrors([f"{file}: {refused}" for refused in refusals])

    def planned_releases(self, sent: Sequence[Outgoing]) -> Releases:
        """Count the messages of the whole federation: those that left, and those of the rounds that are left.

        `sent` are the site's replies in a dry run of the first round.
        """
        released = count_releases(self.replies)
        if not isinstance(self.site, Site):
            return released
        latest = {what: max(one.round for one in self.replies if one.kind == what) for _, what, *_ in self.replies}
        for reply, _ in sent:
            what = MOMENTS if MOMENTS in reply.tensors else str(reply.kind)
            is_repeated = what == Kind.TRAIN or (what == Kind.SHARE and self.method.shares == EVERY_ROUND)
            n_left = max(0, (self.site.rounds if is_repeated else 1) - latest.get(what, 0))
            released["noise", self.privacy.noise] += n_left * bool(reply.weights)
            released["statistics_noise", self.privacy.statistics_noise] += n_left * bool(reply.tensors)
        return +released

    def epsilon(self, released: Releases) -> float:
        """Return epsilon of the messages that leave, for the agreement's `delta`; infinite without noise."""
        require_accountant(self.privacy)
        return epsilon(released, self.agreement.delta)

    def _refusals(self, sent: Sequence[Outgoing], size: int, released: Releases) -> Iterator[Refused]:
        """Yield why these replies must not leave; `size` and `released` are the sums that the agreement limits."""
        names = [name for reply, _ in sent for name in reply.weights]
        if unknown := [name for name in names if name not in self.network or name in self.local_keys]:
            yield Refused(f"'{unknown[0]}' was about to leave, but weights of that name were not agreed to")
        statistics = [(n_patients.get(name, 1), name) for reply, n_patients in sent for name in reply.tensors]
        if missing := sorted({name for _, name in statistics if not self._allows(name)}):
            more = f" and {len(missing) - MAX_LISTED} more" if len(missing) > MAX_LISTED else ""
            yield Refused(
                f"agrees.sends: the statistics {', '.join(map(repr, missing[:MAX_LISTED]))}{more}, which are not in "
                "the list, would leave; add them if you agree"
            )
        for reply, _ in sent:
            yield from self._wrong_facts(reply)
        n, name = min(statistics, default=(self.agreement.min_patients, ""))
        if n < self.agreement.min_patients:
            advice = self.method.patients_advice
            yield Refused(
                f"agrees.min_patients: is {self.agreement.min_patients}, but the statistic '{name}' has numbers that "
                f"are computed from {n} patient{'s' * (n != 1)}; "
                f"{f'ask the coordinator to {advice}, or ' if advice else ''}decrease it if you agree",
                f"the statistic '{name}' is computed from fewer patients than the hospital agreed to"
                f"{f'; {advice}' if advice else ''}",
            )
        if size / 1e6 > self.agreement.megabytes_per_round:
            yield Refused(
                f"agrees.megabytes_per_round: is {self.agreement.megabytes_per_round:g}, but a round would send "
                f"{size / 1e6:.3g} MB; increase it if you agree"
            )
        yield from self._above_epsilon(released)

    def _allows(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.agreement.sends)

    def _wrong_facts(self, reply: Message) -> Iterator[Refused]:
        """Yield a refusal for each fact that a reply of this kind does not have, or that is not one number."""
        known = REPLY_FACTS.get(reply.kind, frozenset())
        if reply.kind == Kind.TRAIN:
            known |= self.method.fact_names
        if reply.kind == Kind.SURVEY and self.survey:
            known |= fact_names(self.survey.n_labels)
        if reply.kind == Kind.SHARE and MOMENTS not in reply.tensors:
            known = frozenset()
        for name, fact in reply.facts.items():
            if name not in known:
                agreed = f"the facts of a reply to '{reply.kind}' are {', '.join(sorted(known)) or 'none'}"
                yield Refused(
                    f"the fact {reprlib.repr(name)} was about to leave, but {agreed}",
                    f"another fact was about to leave; {agreed}",
                )
            elif not is_number(fact):
                yield Refused(f"the fact '{name}' was about to leave as {type(fact).__name__}, not as a finite number")

    def _above_epsilon(self, released: Releases) -> Iterator[Refused]:
        limit = self.agreement.max_epsilon
        if limit is None or not released:
            return
        for key, noise in released:
            if not noise:
                why = f"privacy.{key} of the plan is 0; ask the coordinator for a plan with privacy.{key}"
                if getattr(self.privacy, key):
                    why = (
                        "a reply left without noise, under an earlier plan; use another `folder` for another federation"
                    )
                yield Refused(
                    f"agrees.max_epsilon: is {limit:g}, but epsilon is infinite, because {why}, or set it to null if "
                    "you agree"
                )
                return
        if (needed := self.epsilon(released)) > limit:
            yield Refused(
                f"agrees.max_epsilon: is {limit:g}, but epsilon would be {needed:.4g} (delta {self.agreement.delta:g}) "
                f"after {released.total()} messages with weights or statistics; ask the coordinator for more noise or "
                "fewer rounds, or increase it if you agree"
            )


def agreed_survey(site: Site | ValidationSite, agreement: Agreement) -> SiteSurvey | None:
    """Return the survey to which the hospital agreed, with the larger minimum group size; None if it did not."""
    if not isinstance(site, Site) or site.survey is None or Kind.SURVEY not in agreement.requests:
        return None
    return replace(site.survey, min_patients=max(site.survey.min_patients, agreement.min_patients))


def _what(request: Message) -> str:
    """What a request asks for; the moments of the images are counted apart from the method's statistics."""
    return MOMENTS if ASKED in request.facts else request.kind


def _counted_bytes(reply: Message) -> int:
    """The bytes that count towards `Agreement.megabytes_per_round`: of tensors, and of facts and their names."""
    of_tensors = sum(n_bytes(tensor) for group in (reply.weights, reply.tensors) for tensor in group.values())
    return of_tensors + sum(fact_bytes(fact) + len(name.encode()) for name, fact in reply.facts.items())
