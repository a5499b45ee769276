"""The round loop: the same few lines for every method and every engine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from medfed.errors import UserError
from medfed.federation import ledger
from medfed.federation.engine import Engine
from medfed.federation.message import Message, State
from medfed.federation.method import Method
from medfed.federation.seeds import stream
from medfed.federation.selection import VALIDATION_SITE
from medfed.federation.settings import Federation
from medfed.functional.weights import check_same_entries, first_not_finite

Row = dict[str, object]


@dataclass(frozen=True)
class Round:
    """What one round left behind: the new state, a row for the history, the rows of the ledger, and what took how long.

    seconds: of `n_clients` clients together "share", "train" and "validate", and of the coordinator "aggregate". Measured,
        so not the same twice, and no part of the state.
    """

    state: State
    history: Row
    ledger: list[Row]
    seconds: dict[str, float] = field(default_factory=dict)
    n_clients: int = 0


@dataclass(frozen=True)
class _Record:
    """What is written down while a round goes on."""

    ledger: list[Row] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - began


def federate(
    method: Method, engine: Engine, state: State, settings: Federation, seed: int
) -> Iterator[Round]:
    """Run the rounds that `state` has not seen yet; a round is yielded when it is complete.

    What a round does depends on `state`, the sites and the seed alone, so stopping after any yielded round and going
    on from its state later gives the same bits.
    """
    record = _Record()
    if state.round == 0 and not method.shares_every_round:
        state = _share(method, engine, state, engine.sites(), seed, record)
    while state.round < settings.rounds:
        done = _round(method, engine, state, settings, seed, record)
        state, record = done.state, _Record()
        yield done


def _round(
    method: Method, engine: Engine, state: State, settings: Federation, seed: int, record: _Record
) -> Round:
    """One round. The clients' weights live as long as this call: never two rounds of them at once."""
    number = state.round + 1
    chosen = _choose(engine.sites(), settings.clients_per_round, stream(seed, "clients", number))
    if method.shares_every_round:
        state = _share(method, engine, state, chosen, seed, record)
    common = Message("train", state.weights, {}, {"round": number})
    extras = {site: method.broadcast(state, site) for site in chosen}
    letters = {site: replace(common, tensors=extras[site]) if extras[site] else common for site in chosen}
    updates = _exchange(engine, "train", letters, number, record)
    _check_updates(number, state, updates)
    with record.timing("aggregate"):
        memory = method.remember(state, updates, stream(seed, "remember", number))
        weights = method.aggregate(replace(state, memory=memory), updates)
    took_part = {**state.took_part, **dict.fromkeys(chosen, number)}
    state = State(number, {**state.weights, **weights}, memory, took_part)
    history = _history(engine, state, settings, updates, record)
    return Round(state, history, record.ledger, record.seconds, len(chosen))


def _share(
    method: Method, engine: Engine, state: State, sites: list[str], seed: int, record: _Record
) -> State:
    """Ask every site for what the method shares, and let the method remember it."""
    if type(method).share is Method.share:
        return state
    number = state.round + 1
    asked = dict.fromkeys(sites, Message("share", state.weights, {}, {"round": number}))
    answers = _exchange(engine, "share", asked, number, record)
    shared = {site: answer.tensors for site, answer in answers.items()}
    return replace(state, memory=method.combine(state, shared, stream(seed, "combine", number)))


def _choose(sites: list[str], n: int, rng: torch.Generator) -> list[str]:
    """All sites, or n of them drawn without replacement; sorted either way."""
    if n == 0 or n >= len(sites):
        return sites
    return sorted(sites[index] for index in torch.randperm(len(sites), generator=rng)[:n].tolist())


def _exchange(
    engine: Engine, kind: str, messages: Mapping[str, Message], number: int, record: _Record
) -> dict[str, Message]:
    with record.timing(kind):
        answers = engine.exchange(kind, messages)
    record.ledger.extend([*ledger.entries(number, "down", messages), *ledger.entries(number, "up", answers)])
    return dict(sorted(answers.items()))


def _check_updates(number: int, state: State, updates: Mapping[str, Message]) -> None:
    """Refuse by name what would spoil the average: one NaN, an entry that is missing or broadcasts, no examples."""
    names = sorted(set().union(*(update.weights for update in updates.values())))
    for site, update in updates.items():
        if name := first_not_finite({**update.weights, **update.tensors}):
            raise UserError(
                f"{site}: its update of round {number} is not finite (first in '{name}'); training diverged there, try a "
                "smaller training.learning_rate or look at the site's images with python -m medfed.data check"
            )
        try:
            check_same_entries({name: state.weights[name] for name in names if name in state.weights}, update.weights)
        except ValueError as error:
            raise UserError(f"{site}: its update of round {number} does not fit the network: {error}") from error
        examples = update.facts.get("examples")
        if type(examples) is not int or examples < 1:
            raise UserError(f"{site}: its update of round {number} counts {examples} examples; expected at least 1")


def _history(
    engine: Engine, state: State, settings: Federation, updates: Mapping[str, Message], record: _Record
) -> Row:
    """Mean training loss over the sites, and the validation scores of the new weights where this round has them."""
    row: Row = {"round": state.round, "train_loss": _mean(update.facts["loss"] for update in updates.values())}
    row |= {f"train_loss/{site}": update.facts["loss"] for site, update in updates.items()}
    row["validation_score"] = None
    if state.round % settings.validate_every == 0 or state.round == settings.rounds:
        # Where sites keep entries to themselves there is no whole model yet that another site could validate.
        whole = all(state.weights.keys() <= update.weights.keys() for update in updates.values())
        onlooker = settings.validation_site if whole else ""
        names = [*engine.sites(), *([onlooker] if onlooker else [])]
        asked = dict.fromkeys(names, Message("validate", state.weights, {}, {"round": state.round}))
        answers = _exchange(engine, "validate", asked, state.round, record)
        scores = {site: answer.facts["score"] for site, answer in answers.items() if "score" in answer.facts}
        alone = scores.pop(onlooker, None)
        row["validation_score"] = _mean(scores.values()) if scores else None
        row |= {f"validation_score/{site}": score for site, score in scores.items()}
        row |= {VALIDATION_SITE: alone} if onlooker else {}
    return row


def _mean(numbers) -> float:
    numbers = list(numbers)
    return sum(numbers) / len(numbers)
