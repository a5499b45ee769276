"""One round's exchanges with the sites: ask, time, record, check the replies, and apply the quorum."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from medfed.core.errors import UserError
from medfed.federation import ledger
from medfed.federation.engine import Engine
from medfed.federation.message import Message, State
from medfed.federation.reply_checks import Expected
from medfed.federation.settings import Federation
from medfed.federation.update_checks import Rejection, find_failing_sites, validate_replies

Row = dict[str, object]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Replies:
    """The accepted replies to one request.

    kind, round: of the request.
    n_asked: how many sites were asked.
    by_site: the replies, sorted by the sites' names.
    """

    kind: str
    round: int
    n_asked: int
    by_site: dict[str, Message]


class Exchange:
    """Sends the coordinator's requests through an engine and keeps the replies that count.

    Args:
        engine: carries the messages.
        settings: which replies count, and how many must be left.

    Attributes:
        ledger, seconds: rows of the ledger and seconds by kind of request, since the last `take_records`.
        n_clients: sites that were asked to train, since then.
    """

    def __init__(self, engine: Engine, settings: Federation) -> None:
        self.engine, self.settings = engine, settings
        self.ledger: list[Row] = []
        self.seconds: dict[str, float] = {}
        self.n_clients = 0
        self._n_examples: dict[str, int] = {}  # images that each site counted in earlier rounds of this process

    def ask(self, messages: Mapping[str, Message], state: State) -> Replies:
        """Send one message to each site; return the replies that pass the checks.

        Every message and reply is in the ledger, also a reply that is then rejected: it has left its site.

        Args:
            messages: by site, all of one kind and round; at least one.
            state: with the weights that the replies are compared with.

        Raises:
            UserError: if a reply is bad and `federation.on_bad_update` is "stop", or fewer than the quorum are left.
        """
        first = next(iter(messages.values()))
        kind, number = first.kind, first.facts["round"]
        with self._timing(kind):
            replies = self.engine.exchange(kind, messages)
        self.ledger += ledger.message_rows(number, "down", messages)
        self.ledger += ledger.message_rows(number, "up", replies)
        self.n_clients += len(messages) if kind == "train" else 0
        expected = Expected(
            kind, number, state.weights, self._n_examples, state.parameters, self.settings.largest_change
        )
        accepted, rejected = validate_replies(messages, replies, expected)
        self._handle_rejections(rejected, accepted, len(messages))
        return Replies(kind, number, len(messages), accepted)

    def apply(
        self, step: Callable[[dict[str, Message]], Result], replies: Replies
    ) -> tuple[Result, dict[str, Message]]:
        """Compute the coordinator's step from the replies, without those that make it fail.

        A reply can pass all checks and still lack what the method needs; a site whose reply alone makes `step` fail is
        rejected as in `ask`. Where every site's reply makes it fail, the error is not the sites' and is raised.

        Returns:
            What `step` returned, and the replies that it was computed from.
        """
        used = replies.by_site
        with self._timing("aggregate"):
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
        if replies.kind == "train":
            self._n_examples |= {site: update.facts["examples"] for site, update in used.items()}
        return result, used

    def take_records(self) -> tuple[list[Row], dict[str, float], int]:
        """The ledger's rows, the seconds and the number of clients since the last call; all start again from zero."""
        records = self.ledger, self.seconds, self.n_clients
        self.ledger, self.seconds, self.n_clients = [], {}, 0
        return records

    def check_settings(self) -> None:
        """Refuse settings that no round could satisfy (UserError); to be called before the first round."""
        n_sites = len(self.engine.sites())
        n_asked = min(self.settings.clients_per_round or n_sites, n_sites)
        if self.settings.quorum > n_asked:
            raise UserError(
                f"federation.quorum: is {self.settings.quorum}, but {n_asked} sites take part in a round; lower it"
            )
        if self.settings.largest_change is not None and n_asked < 3:
            raise UserError(
                "federation.largest_change: needs at least 3 sites a round, to know whose change is large, and "
                f"{n_asked} take part; leave it out"
            )

    def _handle_rejections(self, rejected: list[Rejection], left: Iterable[str], n_asked: int) -> None:
        """Warn of each rejected reply; UserError where one is bad and that ends the run, or too few are left."""
        if not rejected:
            return
        bad = [rejection for rejection in rejected if rejection.is_bad]
        if bad and self.settings.on_bad_update == "stop":
            raise UserError(f"{'; '.join(map(str, bad))}; {bad[0].advice}")
        left, needed = list(left), self.settings.quorum or n_asked
        if len(left) < needed:
            which = f" ({', '.join(left)})" if left else ""
            raise UserError(
                f"round {rejected[0].round}: {len(left)} of {n_asked} sites{which} are left, and federation.quorum "
                f"needs {self.settings.quorum or 'all'} ({'; '.join(map(str, rejected))}); go on with --resume when "
                "more sites answer"
            )
        for rejection in rejected:
            warnings.warn(f"{rejection}, and is left out", UserWarning, stacklevel=2)

    @contextmanager
    def _timing(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - began
