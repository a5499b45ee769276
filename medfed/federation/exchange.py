"""One exchange of a round: send requests to the sites, receive and record the replies, check them, apply the quorum.

Only replies that pass every check enter a computation, and only if at least `federation.quorum` of them are left. The
ledger records every message, also a reply that is rejected, because it has left its site.
"""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from medfed.core.errors import UserError
from medfed.federation import ledger
from medfed.federation.checks.expected import DIVERGED, Earlier, Expected
from medfed.federation.checks.measures import received_ratios
from medfed.federation.checks.replies import Rejection, check_replies, find_failing_sites
from medfed.federation.engine import Engine
from medfed.federation.message import Kind, Message, State
from medfed.federation.model_transfer import WeightsSender
from medfed.federation.settings import Federation

Row = dict[str, object]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Replies:
    """The accepted replies to one kind of request in one round."""

    kind: str
    round: int
    n_asked: int
    by_site: dict[str, Message]


def is_validated(number: int, settings: Federation) -> bool:
    return number % settings.validate_every == 0 or number == settings.rounds


@dataclass
class Exchange:
    """Sends the coordinator's requests through an engine and returns the replies that may be used."""

    engine: Engine
    settings: Federation
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # `Method.statistic_ranges`
    row_tensors: frozenset[str] = frozenset()  # `Method.row_tensors`
    batch_size: int = 0  # `Expected.batch_size`
    fact_names: frozenset[str] = frozenset()  # `Method.fact_names`
    # Since the last call of `take_records`: rows for `ledger.csv`; the measured seconds by the kind of request (summed
    # over the sites if `Engine.work_s` is measured) and, at the coordinator, of "aggregate"; sites asked to train.
    ledger: list[Row] = field(default_factory=list, init=False)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float), init=False)
    n_clients: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._sender = WeightsSender(self.engine)
        self._earlier = Earlier()
        self._notified: set[str] = set()

    def ask(self, messages: Mapping[str, Message], state: State) -> Replies:
        """Send one request to each site and return the replies that pass the checks.

        All requests are of one kind and round. A request to a site that was sent the same weights before leaves them
        out (`WeightsSender`). A warning names the site of each rejected reply.

        Raises:
            UserError: if a reply fails a check and `federation.on_bad_update` is "stop", or if fewer replies than
                `federation.quorum` are accepted.
        """
        first = next(iter(messages.values()))
        kind, number = first.kind, first.facts["round"]
        start = time.perf_counter()
        replies, sent = self._sender.exchange(kind, messages)
        passed_s, work_s = time.perf_counter() - start, getattr(self.engine, "work_s", None)
        self.seconds[kind] += passed_s if work_s is None else work_s
        for direction, by_site in sent:
            self.ledger += ledger.message_rows(number, direction, by_site)
        self.n_clients += len(messages) if kind == Kind.TRAIN else 0
        expected = Expected(
            kind,
            number,
            state.weights,
            state.parameters,
            self.settings.largest_change,
            self.settings.largest_count,
            self.ranges,
            self.row_tensors,
            local_keys=state.local_keys,
            local_epochs=self.settings.local_epochs,
            fact_names=self.fact_names,
            batch_size=self.batch_size,
        )
        if kind == Kind.TRAIN:
            expected = replace(expected, received=received_ratios(messages, expected))
        accepted, rejected, notices = check_replies(messages, replies, expected, self._earlier)
        self._handle_rejections(rejected, accepted, len(messages))
        for notice in notices:
            if notice not in self._notified:
                warnings.warn(notice, UserWarning, stacklevel=2)
        self._notified.update(notices)
        return Replies(kind, number, len(messages), accepted)

    def apply(
        self, step: Callable[[dict[str, Message]], Result], replies: Replies
    ) -> tuple[Result, dict[str, Message]]:
        """Return the result of `step(replies)`, and the replies from which it was computed.

        A reply can pass every check and still lack something that the method needs. If `step` fails with an error that
        is not a `UserError`, `find_failing_sites` finds the sites that make it fail; they are rejected, and `step` is
        called again without them. If it fails with every site, the method is wrong, and the first error is raised.
        `step` must not change the replies.

        Raises:
            UserError: if `step` raises it, and in the cases of `ask`.
        """
        used, start = replies.by_site, time.perf_counter()
        try:
            result = step(used)
        except UserError:
            raise
        except Exception:
            rejected = find_failing_sites(step, used, replies.kind, replies.round)
            if not rejected:
                raise
            failing = {rejection.site for rejection in rejected}
            used = {site: reply for site, reply in used.items() if site not in failing}
            self._handle_rejections(rejected, used, replies.n_asked)
            result = step(used)
        self.seconds["aggregate"] += time.perf_counter() - start
        return result, used

    def take_records(self) -> tuple[list[Row], dict[str, float], int]:
        """Return the ledger's rows, the seconds by kind of request and the number of clients, and clear them."""
        records = self.ledger, dict(self.seconds), self.n_clients
        self.ledger, self.seconds, self.n_clients = [], defaultdict(float), 0
        return records

    def assume_sent(self, state: State) -> None:
        """Assume, in a resumed run, that the sites have the weights that they validated in the last finished round.

        The next request then leaves these weights out, as it does in a run that was not stopped.
        """
        if state.round and is_validated(state.round, self.settings):
            self._sender.assume_sent(state.weights, state.plan.sites)

    def _handle_rejections(self, rejected: list[Rejection], left: Iterable[str], n_asked: int) -> None:
        """Warn of each rejected reply; raise UserError if a bad reply stops the run, or if too few replies are left."""
        if not rejected:
            return
        bad = [rejection for rejection in rejected if rejection.is_bad]
        diverged = [rejection for rejection in bad if rejection.advice == DIVERGED]
        if len(diverged) > 1 and 2 * len(diverged) > n_asked:
            raise UserError(
                f"round {bad[0].round}: the replies of {len(diverged)} of {n_asked} sites are not finite or too large "
                f"({diverged[0]}), so that the cause is not one site but the global weights or the settings; try a "
                "smaller training.learning_rate, or an earlier round"
            )
        if bad and self.settings.on_bad_update == "stop":
            raise UserError(f"{'; '.join(map(str, bad))}; {bad[0].advice}")
        left, needed = list(left), self.settings.quorum or n_asked
        if len(left) < needed:
            which = f" ({', '.join(left)})" if left else ""
            raise UserError(
                f"round {rejected[0].round}: {len(left)} of {n_asked} sites{which} have a valid reply, but "
                f"federation.quorum needs {self.settings.quorum or 'all'} ({'; '.join(map(str, rejected))}); continue "
                "with --resume when more sites can reply"
            )
        for rejection in rejected:
            warnings.warn(f"{rejection}; the run continues without it", UserWarning, stacklevel=2)
