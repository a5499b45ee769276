"""The round loop: the same few lines for every method and every engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from medfed.core.errors import UserError
from medfed.core.seeds import stream
from medfed.federation import update_checks
from medfed.federation.engine import Engine
from medfed.federation.exchange import Exchange, Replies, Row
from medfed.federation.message import Message, State
from medfed.federation.method import EVERY_ROUND, ONCE, Method
from medfed.federation.selection import VALIDATION_SITE
from medfed.federation.settings import Federation, Plan, Training
from medfed.functional.aggregation import change_norm
from medfed.functional.weights import first_non_finite

EXCLUDED = 0  # in `State.took_part`: the site shared nothing before round 1 and so trains in no round


@dataclass(frozen=True)
class Round:
    """What one round left behind.

    state: the state after it.
    history: one row: training losses and validation scores.
    ledger: rows of the ledger.
    seconds: of all clients together "share", "train" and "validate", and of the coordinator "aggregate". Measured, so
        not the same twice, and no part of the state.
    n_clients: how many clients were asked to train.
    """

    state: State
    history: Row
    ledger: list[Row]
    seconds: dict[str, float] = field(default_factory=dict)
    n_clients: int = 0


def federate(
    method: Method, engine: Engine, state: State, settings: Federation, seed: int, training: Training | None = None
) -> Iterator[Round]:
    """Run the rounds that `state` has not seen yet; yield each round when it is complete.

    A round depends on `state`, the sites and the seed alone, so stopping after any yielded round and continuing from
    its state later gives the same bits.

    Args:
        training: how each site trains; for methods that read it from `State.plan`.
    """
    if not state.parameters:
        raise ValueError("state.parameters is empty: no weight would count as learned; begin with State.of(network)")
    exchange = Exchange(engine, settings)
    exchange.check_settings()
    sites = [site for site in engine.sites() if state.took_part.get(site) != EXCLUDED]
    state = replace(state, plan=Plan(tuple(sites), settings.rounds, training or Training()))
    if state.round == 0 and method.shares == ONCE:
        state, sharing = share(method, exchange, state, sites, seed)
        state = exclude(state, set(sites) - set(sharing))
    while state.round < settings.rounds:
        number = state.round + 1
        sites = choose_sites(state.plan.sites, settings.clients_per_round, stream(seed, "clients", number))
        if method.shares == EVERY_ROUND:
            state, sites = share(method, exchange, state, sites, seed)
        replies = exchange.ask(training_requests(method, state, sites), state)
        state, updates = aggregate(method, exchange, state, replies, seed)
        history = {"round": number, **mean_and_by_site("train_loss", facts_of(updates, "loss"))}
        history |= validate(exchange, state, updates)
        del replies, updates  # never two rounds of the clients' weights at once
        yield Round(state, history, *exchange.take_records())


def share(
    method: Method, exchange: Exchange, state: State, sites: list[str], seed: int
) -> tuple[State, list[str]]:
    """Ask every site for what the method shares and let the method combine it; also the sites that shared."""
    number = state.round + 1
    shared = exchange.ask(requests_with_last_round("share", state, sites, number), state)

    def combine(replies: dict[str, Message]) -> dict[str, Tensor]:
        tensors = {site: reply.tensors for site, reply in replies.items()}
        return method.combine(state, tensors, stream(seed, "combine", number))

    memory, replies = exchange.apply(combine, shared)
    return replace(state, memory=memory), list(replies)


def exclude(state: State, sites: Iterable[str]) -> State:
    """The state of a federation in which these sites train in no round: they shared nothing before the first."""
    left = tuple(site for site in state.plan.sites if site not in sites)
    return replace(state, took_part=dict.fromkeys(sorted(sites), EXCLUDED), plan=replace(state.plan, sites=left))


def choose_sites(sites: Iterable[str], n: int, rng: torch.Generator) -> list[str]:
    """All sites if n is 0 or not below their number, else n of them, drawn without replacement; sorted either way."""
    sites = list(sites)
    if n == 0 or n >= len(sites):
        return sites
    return sorted(sites[index] for index in torch.randperm(len(sites), generator=rng)[:n].tolist())


def training_requests(method: Method, state: State, sites: list[str]) -> dict[str, Message]:
    """By site: the global weights, and what the method broadcasts to that site."""
    requests = requests_with_last_round("train", state, sites, state.round + 1)
    for site, request in requests.items():
        if tensors := method.broadcast(state, site):
            requests[site] = replace(request, tensors=tensors)
    return requests


def requests_with_last_round(kind: str, state: State, sites: Iterable[str], number: int) -> dict[str, Message]:
    """By site: the global weights, and the site's last accepted round as the fact `last`.

    The site restores its memory from that round and discards work of rejected rounds. Sites with equal messages get
    the same object.
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
    """The state after this round, and the updates that it was computed from."""

    def server_step(replies: dict[str, Message]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        memory = method.remember(state, replies, stream(seed, "remember", updates.round))
        return memory, method.aggregate(replace(state, memory=memory), replies)

    (memory, weights), used = exchange.apply(server_step, updates)
    check_finite(state, used, {**weights, **memory})
    took_part = {**state.took_part, **dict.fromkeys(used, updates.round)}
    weights = {**state.weights, **weights}
    return replace(state, round=updates.round, weights=weights, memory=memory, took_part=took_part), used


def check_finite(state: State, updates: Mapping[str, Message], computed: Mapping[str, Tensor]) -> None:
    """UserError if the computed weights or memory are not finite, although every update is: sums can overflow."""
    if name := first_non_finite(computed):
        lengths = {site: change_norm(state.weights, update.weights) for site, update in updates.items()}
        largest = max(lengths, key=lambda site: lengths[site])
        raise UserError(
            f"{largest}: its update of round {state.round + 1} changes most, and what all updates make together is not "
            f"finite (first in '{name}'); {update_checks.ADVICE}"
        )


def validate(exchange: Exchange, state: State, updates: Mapping[str, Message]) -> Row:
    """Columns of the history: the scores of the new weights at the sites, in rounds that are validated.

    What else sites report when they validate is there under its own name, mean and by site.
    """
    settings, row = exchange.settings, Row(validation_score=None)
    if state.round % settings.validate_every and state.round != settings.rounds:
        return row
    # Where sites keep entries of the network to themselves, the validation site cannot have a whole model yet.
    is_whole = all(state.weights.keys() <= update.weights.keys() for update in updates.values())
    validation_site = settings.validation_site if is_whole else ""
    sites = [*state.plan.sites, *([validation_site] if validation_site else [])]
    requests = dict.fromkeys(sites, Message("validate", state.weights, {}, {"round": state.round}))
    if not is_whole:
        requests = requests_with_last_round("validate", state, sites, state.round)
    replies = exchange.ask(requests, state).by_site
    scores = facts_of(replies, "score")
    validation_site_score = scores.pop(validation_site, None)
    if scores:
        row |= mean_and_by_site("validation_score", scores)
    if validation_site:
        row[VALIDATION_SITE] = validation_site_score
    for name in sorted({name for reply in replies.values() for name in reply.facts} - {"score"}):
        row |= mean_and_by_site(name, facts_of(replies, name))
    return row


def facts_of(replies: Mapping[str, Message], name: str) -> dict[str, float]:
    """One fact of the replies, by site; without the sites that do not report it."""
    return {site: reply.facts[name] for site, reply in replies.items() if name in reply.facts}


def mean_and_by_site(name: str, values: Mapping[str, float]) -> Row:
    """Columns NAME (the mean over sites) and NAME/SITE."""
    return {name: sum(values.values()) / len(values), **{f"{name}/{site}": value for site, value in values.items()}}
