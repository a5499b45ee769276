"""The round loop of federated training, the same for every method and every engine.

`federate` runs one round after another. In each round the coordinator

1. chooses the sites (`choose_sites`),
2. asks them for shared statistics, if the method shares in every round (`share`; a method that shares once does so
   before round 1),
3. sends them the global weights and the method's tensors (`training_requests`) and receives their updates,
4. aggregates the accepted updates into the next state (`aggregate`),
5. validates the new global weights at the sites (`validate`), and yields a `Round`.

Guarantees:

* Resuming is bit-identical. A round depends on `State`, the sites' data and the seed alone, and all random numbers come
  from streams that are named after their purpose and round.
* If only some sites reply, the result is bit-identical to a round in which only those sites were asked.
* A late reply is never used: an engine returns only replies to the current requests, and a site that sends the weights
  of an earlier round again is rejected (`medfed.federation.checks`; after a restart, of rounds since then).
* A site's work counts once. Each request contains the number of the site's last accepted round, and the site restores
  its memory from that round, so that work of a rejected round leaves no trace and a repeated request gives the same
  reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from medfed.core.errors import UserError
from medfed.core.seeds import stream
from medfed.federation.checks.expected import ADVICE, REPLY_FACTS
from medfed.federation.engine import Engine
from medfed.federation.exchange import Exchange, Replies, Row, is_validated
from medfed.federation.image_moments import RANGES as MOMENT_RANGES
from medfed.federation.image_moments import agree_on_constants, constants_of, has_constants
from medfed.federation.message import Kind, Message, State
from medfed.federation.method import EVERY_ROUND, ONCE, Method
from medfed.federation.selection import VALIDATION_SITE
from medfed.federation.settings import Federation, Plan, Training
from medfed.functional.weights import change_norm, first_non_finite

EXCLUDED = 0  # value in `State.took_part` of a site that did not share before round 1 and therefore never trains


@dataclass(frozen=True)
class Round:
    """The results of one round."""

    state: State  # of the coordinator, after the round
    history: Row  # of `history.csv`: training losses, numbers that the method reports, and validation scores
    ledger: list[Row]  # of `ledger.csv` (`ledger.message_rows`)
    seconds: dict[str, float] = field(default_factory=dict)  # `Exchange.seconds`: measured, and not part of the state
    n_clients: int = 0  # that were asked to train
    n_steps: int | None = None  # optimiser steps of all clients together; None if they are not known
    n_images: int | None = None  # with which all clients trained, each as often as it was used (`Method.effort`)


def federate(
    method: Method, engine: Engine, state: State, settings: Federation, seed: int, training: Training | None = None
) -> Iterator[Round]:
    """Run the remaining rounds of a federated training, and yield a `Round` after each.

    Called again with the state of any yielded round, it continues the run with bit-identical results.

    Args:
        state: the state to start from: `State.of(network)`, or the state of an earlier round.
        seed: the seed of all random streams at the coordinator.
        training: the settings of the local training, for methods that read them from `State.plan`, and for the check of
            the numbers of steps, which is left out with None.

    Raises:
        UserError: if the settings do not fit the number of sites; if a reply fails a check and
            `federation.on_bad_update` is "stop"; if fewer replies than `federation.quorum` are accepted; or if the new
            weights contain NaN or infinite values.
    """
    if not state.parameters:
        raise ValueError("state.parameters is empty, so that no weight would be trained; start from State.of(network)")
    batch_size = training.batch_size if training and type(method).expand is Method.expand else 0
    ranges = {**MOMENT_RANGES, **method.statistic_ranges}
    exchange = Exchange(engine, settings, ranges, method.row_tensors, batch_size, method.fact_names)
    settings.check_quorum(len(engine.sites()))
    sites = [site for site in engine.sites() if state.took_part.get(site) != EXCLUDED]
    state = replace(state, plan=Plan(tuple(sites), settings.rounds, training or Training()))
    exchange.assume_sent(state)
    if state.round == 0 and has_constants(state.weights):
        state = agree_on_constants(exchange, state, sites)
    if state.round == 0 and method.shares == ONCE:
        state, sharing = share(method, exchange, state, sites, seed)
        excluded = dict.fromkeys(sorted(set(sites) - set(sharing)), EXCLUDED)
        state = replace(state, took_part=excluded, plan=replace(state.plan, sites=tuple(sharing)))
    while state.round < settings.rounds:
        number = state.round + 1
        sites = choose_sites(state.plan.sites, settings.clients_per_round, stream(seed, "clients", number))
        if method.shares == EVERY_ROUND:
            state, sites = share(method, exchange, state, sites, seed)
        replies = exchange.ask(training_requests(method, state, sites), state)
        state, updates = aggregate(method, exchange, state, replies, seed)
        own = {"round": number, **_mean_and_by_site("train_loss", _facts_of(updates, "loss"))}
        facts = _columns(updates, REPLY_FACTS[Kind.TRAIN] | {"round"})
        history = {**own, **facts, **validate(exchange, state, updates), **own}  # no fact replaces a column of the loop
        n_steps, n_examples = (int(sum(_facts_of(updates, name).values())) for name in ("steps", "examples"))
        n_images = round(n_examples * settings.local_epochs * method.effort(len(state.plan.sites)).images)
        del replies, updates  # frees the clients' weights before the next round
        yield Round(state, history, *exchange.take_records(), n_steps=n_steps, n_images=n_images)


def share(method: Method, exchange: Exchange, state: State, sites: list[str], seed: int) -> tuple[State, list[str]]:
    """Ask sites for the statistics that the method shares, and combine them into a new `state.memory`.

    Also returns the names of the sites whose statistics were used. Raises UserError like `Exchange.ask`.
    """
    number = state.round + 1
    requested = state if method.share_reads_network else replace(state, weights={})
    shared = exchange.ask(requests_with_last_round(Kind.SHARE, requested, sites, number), state)

    def combine(replies: dict[str, Message]) -> dict[str, Tensor]:
        tensors = {site: reply.tensors for site, reply in replies.items()}
        return method.combine(state, tensors, stream(seed, "combine", number))

    memory, replies = exchange.apply(combine, shared)
    return replace(state, memory=memory), list(replies)


def choose_sites(sites: Iterable[str], n: int, rng: torch.Generator) -> list[str]:
    """Draw n of the sorted sites without replacement; 0, or a number above that of the sites, takes all."""
    sites = list(sites)
    if n == 0 or n >= len(sites):
        return sites
    return sorted(sites[index] for index in torch.randperm(len(sites), generator=rng)[:n].tolist())


def training_requests(method: Method, state: State, sites: list[str]) -> dict[str, Message]:
    """Return, by site, the requests to train, with the global weights and what `Method.broadcast` selects."""
    requests = requests_with_last_round(Kind.TRAIN, state, sites, state.round + 1)
    for site, request in requests.items():
        if tensors := method.broadcast(state, site):
            requests[site] = replace(request, tensors=tensors)
    return requests


def requests_with_last_round(kind: str, state: State, sites: Iterable[str], number: int) -> dict[str, Message]:
    """Return, by site, one request with the global weights and the facts `round` (`number`) and `last`.

    `last` is the last round in which the coordinator used the site's update, or 0. The site restores what it kept after
    that round. Sites with equal requests share one object, which an engine has to convert to bytes only once.
    """
    common: dict[int, Message] = {}
    lasts = {site: state.took_part.get(site, 0) for site in sites}
    return {
        site: common.setdefault(last, Message(kind, state.weights, {}, {"round": number, "last": last}))
        for site, last in lasts.items()
    }


def aggregate(
    method: Method, exchange: Exchange, state: State, updates: Replies, seed: int
) -> tuple[State, dict[str, Message]]:
    """Return the coordinator's state after a round, and the updates from which it was computed.

    Sites whose update makes the method's hooks fail are left out. UserError if the new weights or memory are not
    finite.
    """

    def server_step(replies: dict[str, Message]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        memory = method.remember(state, replies, stream(seed, "remember", updates.round))
        return memory, method.aggregate(replace(state, memory=memory), replies)

    (memory, weights), used = exchange.apply(server_step, updates)
    _check_finite(state, used, {**weights, **memory})
    took_part = {**state.took_part, **dict.fromkeys(used, updates.round)}
    weights = {**state.weights, **weights, **constants_of(state.weights)}  # no round changes how images are scaled
    return replace(state, round=updates.round, weights=weights, memory=memory, took_part=took_part), used


def _check_finite(state: State, updates: Mapping[str, Message], computed: Mapping[str, Tensor]) -> None:
    """UserError, naming the site with the largest change, if weights or memory are not finite, as sums can overflow."""
    if name := first_non_finite(computed):
        norms = {site: change_norm(state.weights, update.weights) for site, update in updates.items()}
        largest = max(norms, key=lambda site: norms[site])
        raise UserError(
            f"{largest}: after round {state.round + 1}, '{name}' contains NaN or infinite values, and the update of "
            f"this site changes the weights most; {ADVICE}"
        )


def validate(exchange: Exchange, state: State, updates: Mapping[str, Message]) -> Row:
    """Score the new global weights on the validation patients of the sites; return columns for `history.csv`.

    They are `validation_score` (mean over the sites that train; None without scores), `validation_score/SITE`,
    `validation_site_score`, and NAME (mean) and `NAME/SITE` for every other number that the sites report. The
    validation site is not asked if entries of the network stay at the sites, because no complete model exists for it.
    """
    settings, row = exchange.settings, Row(validation_score=None)
    if not is_validated(state.round, settings):
        return row
    is_whole = all(state.weights.keys() <= update.weights.keys() for update in updates.values())
    validation_site = settings.validation_site if is_whole else ""
    sites = [*state.plan.sites, *([validation_site] if validation_site else [])]
    requests = dict.fromkeys(sites, Message(Kind.VALIDATE, state.weights, {}, {"round": state.round}))
    if not is_whole:
        requests = requests_with_last_round(Kind.VALIDATE, state, sites, state.round)
    replies = exchange.ask(requests, state).by_site
    scores = _facts_of(replies, "score")
    validation_site_score = scores.pop(validation_site, None)
    if scores:
        row |= _mean_and_by_site("validation_score", scores)
    if validation_site:
        row[VALIDATION_SITE] = validation_site_score
    return {**row, **_columns(replies, frozenset({"score"})), **row}  # no fact of a site replaces a score


def _columns(replies: Mapping[str, Message], without: frozenset[str]) -> Row:
    """Columns of `history.csv`: the mean of each fact over the sites, and the fact of each site."""
    row = Row()
    for name in sorted({name for reply in replies.values() for name in reply.facts} - without):
        row |= _mean_and_by_site(name, _facts_of(replies, name))
    return row


def _facts_of(replies: Mapping[str, Message], name: str) -> dict[str, float]:
    """The fact `name` of each site whose reply has it."""
    return {site: reply.facts[name] for site, reply in replies.items() if name in reply.facts}


def _mean_and_by_site(name: str, values: Mapping[str, float]) -> Row:
    """The columns NAME, the mean over the sites, and NAME/SITE."""
    return {name: sum(values.values()) / len(values), **{f"{name}/{site}": value for site, value in values.items()}}
