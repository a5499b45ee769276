"""What a hospital agreed to, and the guard that holds every letter and every answer against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from torch import Tensor

from medfed.federation.message import Message, digest, n_bytes
from medfed.federation.method import NEVER, ONCE
from medfed.functional.weights import check_same_entries, first_non_finite

KINDS = ("share", "train", "validate", "end")
VALIDATION_KINDS = ("validate", "end")  # of a site that only validates
FACTS = frozenset({"round", "last"})  # all that a coordinator may say beside tensors
MAX_BYTES_DOWN = 2 << 30  # of statistics in one letter


class Refused(Exception):
    """A letter or an answer that the hospital did not agree to; the text is a sentence."""


@dataclass(frozen=True)
class Agreement:
    """What may leave a hospital, and how often.

    Args:
        sends: names of the tensors that may leave beside weights; `*` stands for anything.
        rounds: of training, in all.
        megabytes_per_round: that may leave, all answers of a round together; the very same answer to the very same
            letter, sent again where it was lost, tells nothing new and counts once.
        replies_per_round: how often one kind of letter is answered in a round: once, and again where one was lost.
    """

    sends: tuple[str, ...] = ()
    rounds: int = 100
    megabytes_per_round: float = 100.0
    replies_per_round: int = 3

    def __post_init__(self) -> None:
        for name in ("rounds", "megabytes_per_round", "replies_per_round"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")

    def allows(self, name: str) -> bool:
        """Whether a tensor of that name may leave beside weights."""
        return any(fnmatchcase(name, known) for known in self.sends)


@dataclass
class Guard:
    """Stands between the wire and a site.

    Args:
        network: the site's own state dict: what weights may look like.
        stays: entries of it that never leave.
        kinds: of letters that are answered at all.
        shares: when the method shares, as `Method.shares`.
        answered: how often each kind was answered in each round ("train 3"); outlives a restart if its holder does.
        sent_bytes: what left in each round, likewise.
        sent: the digests of what left in each round, and of what it answered, likewise.
    """

    agreement: Agreement
    network: Mapping[str, Tensor]
    stays: frozenset[str] = frozenset()
    kinds: tuple[str, ...] = KINDS
    shares: str = NEVER
    answered: Counter[str] = field(default_factory=Counter)
    sent_bytes: Counter[str] = field(default_factory=Counter)
    sent: dict[str, list[str]] = field(default_factory=dict)

    def check_request(self, message: Message) -> None:
        """Raises Refused, before anything of it is used."""
        if message.kind not in self.kinds:
            raise Refused(f"was asked to '{message.kind}'; agreed to {', '.join(self.kinds)} and nothing else")
        self._check_facts(message)
        number = message.facts["round"]
        if message.kind == "share" and (self.shares == NEVER or (self.shares == ONCE and number > 1)):
            when = "never shares" if self.shares == NEVER else "shares before round 1 alone"
            raise Refused(f"was asked to share in round {number}; the method that it agreed to {when}")
        latest = max((int(key.split()[1]) for key in self.answered if key.startswith("train ")), default=0)
        if number < latest - 1:
            raise Refused(f"was asked to {message.kind} in round {number}, and has trained in round {latest}; a "
                          "coordinator goes back one round at most")
        done = self.answered[f"{message.kind} {number}"]
        if done >= self.agreement.replies_per_round:
            raise Refused(f"was asked to {message.kind} in round {number} more than {done} times")
        self._check_weights(message)
        if (size := sum(map(n_bytes, message.tensors.values()))) > MAX_BYTES_DOWN:
            raise Refused(f"was sent {size / 2**20:.0f} MB of statistics; takes {MAX_BYTES_DOWN >> 20}")
        if name := first_non_finite(message.tensors):
            raise Refused(f"was sent '{name}', which is not finite")

    def check_reply(self, letter: Message, answer: Message) -> None:
        """Raises Refused if it holds what may not leave; notes it otherwise."""
        number = letter.facts["round"]
        if strange := sorted(set(answer.weights) - (set(self.network) - self.stays)):
            raise Refused(f"'{strange[0]}' was about to leave; no weight of that name was agreed to")
        if strange := [name for name in answer.tensors if not self.agreement.allows(name)]:
            raise Refused(f"'{strange[0]}' was about to leave; agreed to {', '.join(self.agreement.sends) or 'none'}")
        of = digest(letter.to_bytes()) + digest(answer.to_bytes())
        if of not in self.sent.get(str(number), []):
            entries = [*answer.weights.values(), *answer.tensors.values()]
            self._count(number, sum(map(n_bytes, entries)))
            # No letter comes of rounds before these.
            self.sent = {key: known for key, known in self.sent.items() if int(key) >= number - 1}
            self.sent.setdefault(str(number), []).append(of)
        self.answered[f"{letter.kind} {number}"] += 1

    def _count(self, number: int, size: int) -> None:
        limit = self.agreement.megabytes_per_round * 1e6
        if self.sent_bytes[str(number)] + size > limit:
            raise Refused(f"{size / 1e6:.1f} MB were about to leave in round {number}, after "
                          f"{self.sent_bytes[str(number)] / 1e6:.1f} MB; agreed to {limit / 1e6:g}")
        self.sent_bytes[str(number)] += size

    def _check_facts(self, message: Message) -> None:
        if not isinstance(message.facts, dict):
            raise Refused(f"was told {type(message.facts).__name__} for facts; expected them by name")
        if strange := sorted(set(message.facts) - FACTS):
            raise Refused(f"was told '{strange[0]}'; a coordinator says {' and '.join(sorted(FACTS))} alone")
        number = message.facts.get("round")
        if any(type(fact) is not int for fact in message.facts.values()) or number is None:
            raise Refused(f"was told round {number!r}; expected a whole number")
        if not 1 <= number <= self.agreement.rounds:
            raise Refused(f"was asked for round {number}; agreed to rounds 1 to {self.agreement.rounds}")
        before = number + (message.kind == "validate")  # after a round, and with what it left
        if not 0 <= message.facts.get("last", 0) < before:
            raise Refused(f"was told that round {message.facts['last']} counted last, before round {before}")

    def _check_weights(self, message: Message) -> None:
        wanted = {
            name: entry for name, entry in self.network.items() if name not in self.stays or name in message.weights
        }
        try:
            check_same_entries(wanted, message.weights)
        except ValueError as error:
            raise Refused(f"was sent weights that do not fit its network: {error}") from error
        if name := first_non_finite(message.weights):
            raise Refused(f"was sent weights that are not finite (first in '{name}')")
