"""The round loop: the same few lines for every method and every engine."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from medfed.core.errors import UserError
from medfed.core.seeds import stream
from medfed.federation import ledger, update_checks
from medfed.federation.engine import Engine
from medfed.federation.message import Message, State
from medfed.federation.method import EVERY_ROUND, ONCE, Method
from medfed.federation.selection import VALIDATION_SITE
from medfed.federation.settings import Federation, Plan, Training
from medfed.federation.update_checks import Answers, Expected, Rejection
from medfed.functional.aggregation import change_length
from medfed.functional.weights import first_not_finite

Row = dict[str, object]
Made = TypeVar("Made")
OUT = 0  # in `State.took_part`, of a site that shared nothing before round 1 and so trains in no round


@dataclass(frozen=True)
class Round:
    """What one round left behind: the new state, a row for the history, the rows of the ledger, and what took how long.

    seconds: of `n_clients` clients together "share", "train" and "validate", and of the coordinator "aggregate".
        Measured, so not the same twice, and no part of the state.
    """

    state: State
    history: Row
    ledger: list[Row]
    seconds: dict[str, float] = field(default_factory=dict)
    n_clients: int = 0


@dataclass(frozen=True)
class _Record:
    """What is written down while a round goes on, and how many images each site counted since this process began."""

    ledger: list[Row] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    examples: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - began


def federate(
    method: Method, engine: Engine, state: State, settings: Federation, seed: int, training: Training | None = None
) -> Iterator[Round]:
    """Run the rounds that `state` has not seen yet; a round is yielded when it is complete.

    What a round does depends on `state`, the sites and the seed alone, so stopping after any yielded round and going
    on from its state later gives the same bits.
    """
    record = _Record()
    _check_numbers(engine, settings)
    state = replace(state, plan=Plan(tuple(_sites(engine, state)), settings.rounds, training or Training()))
    if state.round == 0 and method.shares == ONCE:
        sites = engine.sites()
        state, sharers = _share(method, engine, state, sites, settings, seed, record)
        state = replace(state, took_part=dict.fromkeys(sorted(set(sites) - set(sharers)), OUT))
        state = replace(state, plan=replace(state.plan, sites=tuple(sharers)))
    while state.round < settings.rounds:
        done = _round(method, engine, state, settings, seed, record)
        state, record = done.state, _Record(examples=record.examples)
        yield done


def _round(
    method: Method, engine: Engine, state: State, settings: Federation, seed: int, record: _Record
) -> Round:
    """One round. The clients' weights live as long as this call: never two rounds of them at once."""
    number = state.round + 1
    chosen = _choose(_sites(engine, state), settings.clients_per_round, stream(seed, "clients", number))
    if method.shares == EVERY_ROUND:
        state, chosen = _share(method, engine, state, chosen, settings, seed, record)
    letters = _letters(method, state, chosen, number)
    updates = _exchange(engine, "train", letters, number, state, settings, record)

    def put_together(updates: Answers) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        memory = method.remember(state, updates, stream(seed, "remember", number))
        return memory, method.aggregate(replace(state, memory=memory), updates)

    with record.timing("aggregate"):
        (memory, weights), updates = _use(put_together, updates, "train", number, len(letters), settings)
        _check_finite(number, state, updates, {**weights, **memory})
    record.examples.update({site: update.facts["examples"] for site, update in updates.items()})
    took_part = {**state.took_part, **dict.fromkeys(updates, number)}
    state = replace(state, round=number, weights={**state.weights, **weights}, memory=memory, took_part=took_part)
    history = _history(engine, state, settings, updates, record)
    return Round(state, history, record.ledger, record.seconds, len(letters))


def _letters(method: Method, state: State, chosen: list[str], number: int) -> dict[str, Message]:
    letters = _with_last("train", state, chosen, number)
    for site, letter in letters.items():
        if tensors := method.broadcast(state, site):
            letters[site] = replace(letter, tensors=tensors)
    return letters


def _with_last(kind: str, state: State, sites: Iterable[str], number: int) -> dict[str, Message]:
    """One object for all sites that get the same. `last` tells a site which of its rounds counted last: from there it
    goes on, whatever it did in rounds that did not."""
    common: dict[int, Message] = {}
    lasts = {site: state.took_part.get(site, 0) for site in sites}
    return {site: common.setdefault(last, Message(kind, state.weights, {}, {"round": number, "last": last}))
            for site, last in lasts.items()}  # fmt: skip


def _share(
    method: Method, engine: Engine, state: State, sites: list[str], settings: Federation, seed: int, record: _Record
) -> tuple[State, list[str]]:
    """Ask every site for what the method shares, and let the method remember it; with the sites that shared."""
    number = state.round + 1
    asked = _with_last("share", state, sites, number)
    answers = _exchange(engine, "share", asked, number, state, settings, record)

    def put_together(answers: Answers) -> dict[str, Tensor]:
        shared = {site: answer.tensors for site, answer in answers.items()}
        return method.combine(state, shared, stream(seed, "combine", number))

    memory, answers = _use(put_together, answers, "share", number, len(asked), settings)
    return replace(state, memory=memory), list(answers)


def _sites(engine: Engine, state: State) -> list[str]:
    """Those of the run: a site that shared nothing before round 1 is as if it were not there."""
    return [site for site in engine.sites() if state.took_part.get(site) != OUT]


def _choose(sites: list[str], n: int, rng: torch.Generator) -> list[str]:
    """All sites, or n of them drawn without replacement; sorted either way."""
    if n == 0 or n >= len(sites):
        return sites
    return sorted(sites[index] for index in torch.randperm(len(sites), generator=rng)[:n].tolist())


def _exchange(
    engine: Engine, kind: str, messages: Mapping[str, Message], number: int, state: State, settings: Federation,
    record: _Record,
) -> Answers:  # fmt: skip
    """The answers that count, by site; whatever came is in the ledger."""
    with record.timing(kind):
        answers = engine.exchange(kind, messages)
    record.ledger.extend([*ledger.entries(number, "down", messages), *ledger.entries(number, "up", answers)])
    expected = Expected(
        kind, number, state.weights, record.examples, settings.largest_change, state.parameters
    )
    accepted, rejected = update_checks.validate_replies(messages, answers, expected)
    _tell(rejected, accepted, len(messages), settings)
    return accepted


def _use(
    put_together: Callable[[Answers], Made], answers: Answers, kind: str, number: int, n_asked: int,
    settings: Federation,
) -> tuple[Made, Answers]:  # fmt: skip
    """What the method makes of the answers, and of which; those are left out that lack what it needs."""
    try:
        return put_together(answers), answers
    except UserError:
        raise
    except Exception:  # raised again, unless it is some sites' doing
        rejected = update_checks.find_failing_sites(put_together, answers, kind, number)
        if not rejected:
            raise
    bad = {rejection.site for rejection in rejected}
    answers = {site: answer for site, answer in answers.items() if site not in bad}
    _tell(rejected, answers, n_asked, settings)
    return put_together(answers), answers


def _tell(rejected: list[Rejection], left: Iterable[str], n_asked: int, settings: Federation) -> None:
    """Say which answers do not count, and end the run where they are bad and that was asked for, or too many."""
    if not rejected:
        return
    bad = [rejection for rejection in rejected if rejection.is_bad]
    if bad and settings.on_bad_update == "stop":
        raise UserError(f"{'; '.join(map(str, bad))}; {bad[0].advice}")
    left, needed = list(left), settings.quorum or n_asked
    if len(left) < needed:
        which = f" ({', '.join(left)})" if left else ""
        raise UserError(
            f"round {rejected[0].round}: {len(left)} of {n_asked} sites{which} are left, and federation.quorum needs "
            f"{settings.quorum or 'all'} ({'; '.join(map(str, rejected))}); go on with --resume when more sites answer"
        )
    for rejection in rejected:
        warnings.warn(f"{rejection}, and is left out", UserWarning, stacklevel=2)


def _check_numbers(engine: Engine, settings: Federation) -> None:
    """Refuse before the first round what no round could hold."""
    n_asked = min(settings.clients_per_round or len(engine.sites()), len(engine.sites()))
    if settings.quorum > n_asked:
        raise UserError(f"federation.quorum: is {settings.quorum}, but {n_asked} sites take part in a round; lower it")
    if settings.largest_change is not None and n_asked < 3:
        raise UserError(
            f"federation.largest_change: needs at least 3 sites a round, to know whose change is large, and {n_asked} "
            "take part; leave it out"
        )


def _check_finite(number: int, state: State, updates: Answers, made: Mapping[str, Tensor]) -> None:
    """Numbers that are finite one by one can still be too large together."""
    if name := first_not_finite(made):
        lengths = {site: change_length(state.weights, update.weights) for site, update in updates.items()}
        raise UserError(
            f"{max(lengths, key=lengths.get)}: its update of round {number} changes most, and what all updates make "
            f"together is not finite (first in '{name}'); {update_checks.ADVICE}"
        )


def _history(
    engine: Engine, state: State, settings: Federation, updates: Mapping[str, Message], record: _Record
) -> Row:
    """Mean training loss over the sites, and the validation scores of the new weights where this round has them.

    What else sites tell when they validate is there under its own name, mean and by site.
    """
    row: Row = {"round": state.round, "train_loss": _mean(update.facts["loss"] for update in updates.values())}
    row |= {f"train_loss/{site}": update.facts["loss"] for site, update in updates.items()}
    row["validation_score"] = None
    if state.round % settings.validate_every == 0 or state.round == settings.rounds:
        # Where sites keep entries to themselves there is no whole model yet that another site could validate.
        whole = all(state.weights.keys() <= update.weights.keys() for update in updates.values())
        onlooker = settings.validation_site if whole else ""
        names = [*_sites(engine, state), *([onlooker] if onlooker else [])]
        everyone = dict.fromkeys(names, Message("validate", state.weights, {}, {"round": state.round}))
        asked = everyone if whole else _with_last("validate", state, names, state.round)
        answers = _exchange(engine, "validate", asked, state.round, state, settings, record)
        scores = {site: answer.facts["score"] for site, answer in answers.items() if "score" in answer.facts}
        alone = scores.pop(onlooker, None)
        row["validation_score"] = _mean(scores.values()) if scores else None
        row |= {f"validation_score/{site}": score for site, score in scores.items()}
        row |= {VALIDATION_SITE: alone} if onlooker else {}
        for name in sorted({name for answer in answers.values() for name in answer.facts} - {"score"}):
            found = {site: answer.facts[name] for site, answer in answers.items() if name in answer.facts}
            row |= {name: _mean(found.values()), **{f"{name}/{site}": value for site, value in found.items()}}
    return row


def _mean(numbers) -> float:
    numbers = list(numbers)
    return sum(numbers) / len(numbers)
