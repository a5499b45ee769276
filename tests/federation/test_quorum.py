"""Missing and rejected replies: the round is computed from the replies that are left."""

import warnings
from collections.abc import Collection
from dataclasses import dataclass, replace

import pytest
from toy_runs import small_toy

from medfed.core.errors import UserError
from medfed.engines.in_process import InProcess
from medfed.federation.message import State, digest
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.methods.ccst import CCST
from medfed.methods.coordinate_median import CoordinateMedian
from medfed.methods.fedavg import FedAvg
from medfed.methods.feddg_ga import FedDGGA
from medfed.methods.scaffold import SCAFFOLD
from medfed.testing.toy import ToyClassification

SITES = ("east", "north", "south", "west")
QUORUM_2 = Federation(rounds=3, quorum=2)
METHODS = [FedAvg(), CoordinateMedian(), SCAFFOLD(), FedDGGA(), CCST(min_patients=1, k=1)]
SHARE_ONCE = [SCAFFOLD(), CCST(min_patients=1, k=1)]
named = pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)


@dataclass
class Losing(InProcess):
    """An engine that does not reach the sites in `lost`, given as (kind, round, site)."""

    lost: Collection[tuple[str, int, str]] = ()

    def exchange(self, kind, messages):
        unreached = {site for site, m in messages.items() if (kind, m.facts["round"], site) in self.lost}
        return super().exchange(kind, {site: m for site, m in messages.items() if site not in unreached})


def finish(engine, method, start, settings):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        rounds = list(federate(method, engine, start, settings, 0))
    return rounds, [str(one.message) for one in warned if "of round" in str(one.message)]


def built(toy, method, lost=(), sites=SITES):
    return Losing(toy.engine(method, sites).local_sites, lost=lost)


@pytest.fixture
def toy() -> ToyClassification:
    return small_toy()


@named
def test_a_round_with_missing_sites_is_as_if_only_the_others_were_asked(toy, method, monkeypatch):
    """South is missing in round 1, and north in round 2."""
    kind = "share" if method.shares == "every round" else "train"
    engine = built(toy, method, {(kind, 1, "south"), (kind, 2, "north")})
    result, warned = finish(engine, method, toy.start(method), QUORUM_2)
    asked = iter([["east", "north", "west"], ["east", "south", "west"], list(SITES)])
    monkeypatch.setattr("medfed.federation.rounds.choose_sites", lambda *_: next(asked))
    expected, none = finish(built(toy, method), method, toy.start(method), Federation(rounds=3))
    assert [digest(one.state.to_bytes()) for one in result] == [digest(one.state.to_bytes()) for one in expected]
    assert [one.history for one in result] == [one.history for one in expected]
    assert result[1].state.took_part == {"east": 2, "north": 1, "south": 2, "west": 2}
    what = {"share": "share", "train": "update"}[kind]
    end = "was not received; the run continues without it"
    assert not none and warned == [f"south: its {what} of round 1 {end}", f"north: its {what} of round 2 {end}"]


@pytest.mark.parametrize("method", SHARE_ONCE, ids=lambda method: type(method).__name__)
def test_a_site_that_does_not_share_before_round_1_never_takes_part_nor_after_resuming(toy, method):
    result, warned = finish(built(toy, method, {("share", 1, "south")}), method, toy.start(method), QUORUM_2)
    others = built(toy, method, sites=("east", "north", "west"))
    expected, _ = finish(others, method, toy.start(method), QUORUM_2)
    for one, other in zip(result, expected, strict=True):
        assert one.history == other.history and one.state.took_part == {**other.state.took_part, "south": 0}
        one, other = (replace(done.state, took_part={}).to_bytes() for done in (one, other))
        assert digest(one) == digest(other)
    assert warned == ["south: its share of round 1 was not received; the run continues without it"]
    resumed, _ = finish(built(toy, method), method, State.from_bytes(result[0].state.to_bytes()), QUORUM_2)
    assert not any(row["site"] == "south" for one in resumed for row in one.ledger)


@pytest.mark.parametrize("kind", ["share", "train", "validate"])
def test_without_a_quorum_all_sites_must_reply(toy, kind):
    method = SCAFFOLD()
    with pytest.raises(UserError, match="round 1: 3 of 4 sites .*federation.quorum needs all .south: its "):
        finish(built(toy, method, {(kind, 1, "south")}), method, toy.start(method), Federation(rounds=1))


def test_a_missing_score_is_not_part_of_the_mean(toy, fedavg):
    (done, *_), warned = finish(built(toy, fedavg, {("validate", 1, "south")}), fedavg, toy.start(fedavg), QUORUM_2)
    scores = [done.history[f"validation_score/{site}"] for site in SITES if site != "south"]
    assert done.history["validation_score"] == pytest.approx(sum(scores) / 3)
    assert warned == ["south: its score of round 1 was not received; the run continues without it"]


def test_a_quorum_that_no_round_could_reach_is_refused_before_the_first(toy, fedavg):
    engine = built(toy, fedavg)
    engine.exchange = None  # calling it would fail
    with pytest.raises(UserError, match="federation.quorum: is 5, but only 4 sites take part in a round"):
        finish(engine, fedavg, toy.start(fedavg), Federation(rounds=1, quorum=5))

    with pytest.raises(ValueError, match=r"quorum: must be at most clients_per_round \(2\), got 3"):
        Federation(quorum=3, clients_per_round=2)
