"""Answers that do not come count as answers that are refused: the round is that of the sites that are left."""

import warnings
from collections.abc import Collection
from dataclasses import dataclass, replace

import pytest
from conftest import ToySegmentation

from medfed.core.errors import UserError
from medfed.engines.in_process import InProcess
from medfed.federation.message import Message, State, digest
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.methods.ccst import CCST
from medfed.methods.coordinate_median import CoordinateMedian
from medfed.methods.fedavg import FedAvg
from medfed.methods.feddg_ga import FedDGGA
from medfed.methods.scaffold import SCAFFOLD

SITES = ("east", "north", "south", "west")
GOING_ON = Federation(rounds=3, quorum=2)
METHODS = [FedAvg(), CoordinateMedian(), SCAFFOLD(), FedDGGA(), CCST(min_patients=1, k=1)]
SHARE_ONCE = [SCAFFOLD(), CCST(min_patients=1, k=1)]
named = pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)


@dataclass
class Losing(InProcess):
    """Never reaches some sites: `lost` holds (kind, round, site)."""

    lost: Collection[tuple[str, int, str]] = ()
    by_reason: bool = False

    def exchange(self, kind, messages):
        gone = {site for site, m in messages.items() if (kind, m.facts["round"], site) in self.lost}
        answers = super().exchange(kind, {site: m for site, m in messages.items() if site not in gone})
        told = {site: Message("failed", facts={"why": "its process was killed"}) for site in gone}
        return {**answers, **told} if self.by_reason else answers


def finish(engine, method, start, settings):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rounds = list(federate(method, engine, start, settings, 0))
    return rounds, [str(one.message) for one in said if "of round" in str(one.message)]


def built(toy, method, lost=(), by_reason=False, sites=SITES):
    return Losing(toy.engine(method, sites).local_sites, lost=lost, by_reason=by_reason)


@named
def test_a_round_of_some_sites_is_that_of_asking_these_alone(method, monkeypatch):
    """South is lost in round 1 and north in round 2."""
    toy, kind = ToySegmentation(), "share" if method.shares == "every round" else "train"
    engine = built(toy, method, {(kind, 1, "south"), (kind, 2, "north")})
    found, said = finish(engine, method, toy.start(method), GOING_ON)
    asked = iter([["east", "north", "west"], ["east", "south", "west"], list(SITES)])
    monkeypatch.setattr("medfed.federation.rounds.choose_sites", lambda *_: next(asked))
    expected, none = finish(built(toy, method), method, toy.start(method), Federation(rounds=3))
    assert [digest(one.state.to_bytes()) for one in found] == [digest(one.state.to_bytes()) for one in expected]
    assert [one.history for one in found] == [one.history for one in expected]
    assert found[1].state.took_part == {"east": 2, "north": 1, "south": 2, "west": 2}
    what = {"share": "share", "train": "update"}[kind]
    assert not none and said == [f"south: its {what} of round 1 did not come, and is left out",
                                 f"north: its {what} of round 2 did not come, and is left out"]  # fmt: skip


def test_a_site_that_says_why_it_has_no_answer_has_none(fedavg):
    toy, settings, lost = ToySegmentation(), Federation(rounds=1, quorum=2), {("train", 1, "south")}
    (silent,), _ = finish(built(toy, fedavg, lost), fedavg, toy.start(fedavg), settings)
    (found,), said = finish(built(toy, fedavg, lost, by_reason=True), fedavg, toy.start(fedavg), settings)
    assert digest(found.state.to_bytes()) == digest(silent.state.to_bytes())
    assert said == ["south: its update of round 1 did not come: its process was killed, and is left out"]


@pytest.mark.parametrize("method", SHARE_ONCE, ids=lambda method: type(method).__name__)
def test_a_site_that_shares_nothing_before_round_1_is_as_if_it_were_not_there(method):
    toy = ToySegmentation()
    found, said = finish(built(toy, method, {("share", 1, "south")}), method, toy.start(method), GOING_ON)
    others = built(toy, method, sites=("east", "north", "west"))
    expected, _ = finish(others, method, toy.start(method), GOING_ON)
    for one, other in zip(found, expected, strict=True):
        assert one.history == other.history and one.state.took_part == {**other.state.took_part, "south": 0}
        one, other = (replace(done.state, took_part={}).to_bytes() for done in (one, other))
        assert digest(one) == digest(other)
    assert said == ["south: its share of round 1 did not come, and is left out"]


def test_after_a_restart_it_is_still_not_there():
    toy, method = ToySegmentation(), SCAFFOLD()
    engine = built(toy, method, {("share", 1, "south")})
    (first, *_), _ = finish(engine, method, toy.start(method), GOING_ON)
    again = State.from_bytes(first.state.to_bytes())
    rounds, _ = finish(built(toy, method), method, again, GOING_ON)
    assert not any(row["site"] == "south" for one in rounds for row in one.ledger)


def test_too_few_sites_are_told_which_and_how_many(fedavg):
    toy, lost = ToySegmentation(), {("train", 1, "south"), ("train", 1, "west"), ("train", 1, "east")}
    sentence = (r"^round 1: 1 of 4 sites \(north\) are left, and federation.quorum needs 2 \(east: its update of "
                "round 1 did not come; south: .*; west: .*; go on with --resume when more sites answer$")  # fmt: skip
    with pytest.raises(UserError, match=sentence):
        finish(built(toy, fedavg, lost), fedavg, toy.start(fedavg), GOING_ON)


@pytest.mark.parametrize("kind", ["share", "train", "validate"])
def test_all_that_were_asked_must_answer_where_nothing_else_is_said(kind):
    toy, method = ToySegmentation(), SCAFFOLD()
    with pytest.raises(UserError, match="round 1: 3 of 4 sites .*federation.quorum needs all .south: its "):
        finish(built(toy, method, {(kind, 1, "south")}), method, toy.start(method), Federation(rounds=1))


def test_a_site_that_gave_no_score_enters_no_mean(fedavg):
    toy = ToySegmentation()
    (done, *_), said = finish(built(toy, fedavg, {("validate", 1, "south")}), fedavg, toy.start(fedavg), GOING_ON)
    scores = [done.history[f"validation_score/{site}"] for site in SITES if site != "south"]
    assert done.history["validation_score"] == pytest.approx(sum(scores) / 3)
    assert said == ["south: its score of round 1 did not come, and is left out"]


def test_an_answer_that_nobody_asked_for_is_left_out(fedavg):
    toy = ToySegmentation()
    engine = built(toy, fedavg)
    exchange, late = engine.exchange, {}

    def talkative(kind, messages):
        answers = exchange(kind, messages)
        late.update({"south": answers["south"]} if kind == "train" and "south" in answers else {})
        return {**answers, **late} if kind == "train" else answers

    engine.exchange = talkative
    settings = Federation(rounds=4, clients_per_round=2)
    rounds, said = finish(engine, fedavg, toy.start(fedavg), settings)
    expected, _ = finish(built(toy, fedavg), fedavg, toy.start(fedavg), settings)
    assert digest(rounds[-1].state.to_bytes()) == digest(expected[-1].state.to_bytes())
    assert said and all("came, and was not asked for, and is left out" in text for text in said)


def test_a_number_of_images_that_changes_is_refused(fedavg):
    toy = ToySegmentation()
    engine = built(toy, fedavg)
    exchange = engine.exchange

    def growing(kind, messages):
        answers = exchange(kind, messages)
        if kind == "train" and messages["west"].facts["round"] == 2:
            answers["west"] = replace(answers["west"], facts={**answers["west"].facts, "examples": 11})
        return answers

    engine.exchange = growing
    with pytest.raises(UserError, match="west: its update of round 2 counts 11 examples, and counted 10 before; "):
        finish(engine, fedavg, toy.start(fedavg), Federation(rounds=3))


@pytest.mark.parametrize(("settings", "sentence"), [
    ({"quorum": 5}, "federation.quorum: is 5, but 4 sites take part in a round"),
    ({"largest_change": 3.0, "clients_per_round": 2}, "largest_change: needs at least 3 sites a round.* 2 take"),
])  # fmt: skip
def test_what_no_round_could_hold_is_refused_before_the_first(fedavg, settings, sentence):
    toy = ToySegmentation()
    engine = built(toy, fedavg)
    engine.exchange = None  # calling it would fail
    with pytest.raises(UserError, match=sentence):
        finish(engine, fedavg, toy.start(fedavg), Federation(rounds=1, **settings))


@pytest.mark.parametrize(("settings", "sentence"), [
    ({"quorum": -1}, "quorum must be at least 0, got -1"),
    ({"quorum": 3, "clients_per_round": 2}, r"quorum must be at most clients_per_round \(2\), got 3"),
    ({"on_bad_update": "ignore"}, "on_bad_update must be one of stop, drop, got 'ignore'"),
    ({"largest_change": 0.5}, "largest_change must be at least 1, or null, got 0.5"),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        Federation(**settings)
