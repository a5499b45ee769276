"""A site whose answer did not count goes on from where its last one that counted left it."""

import warnings
from collections.abc import Collection
from dataclasses import dataclass, replace

import pytest
import torch
from conftest import ToySegmentation

from medfed.engines.in_process import InProcess
from medfed.engines.site_store import SiteStore
from medfed.federation.message import Message, digest, failed_reply
from medfed.federation.method import Method
from medfed.federation.rounds import federate, requests_with_last_round
from medfed.federation.settings import Federation, Training
from medfed.networks.unet import UNet

GOING_ON = Federation(rounds=4, quorum=1)


@dataclass
class Dropping(InProcess):
    """Its sites work, and some answers are lost on the way: `lost` holds (round, site); or the letters to them are."""

    lost: Collection[tuple[int, str]] = ()
    is_on_the_way_down: bool = False

    def exchange(self, kind, messages):
        lost = [site for site, m in messages.items() if kind == "train" and (m.facts["round"], site) in self.lost]
        gone = lost if self.is_on_the_way_down else []
        answers = super().exchange(kind, {site: message for site, message in messages.items() if site not in gone})
        return {**answers, **dict.fromkeys(lost, failed_reply("its line broke"))}


def rounds(toy, method, engine, settings=GOING_ON):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return list(federate(method, engine, toy.start(method), settings, 0))


def states(toy, fedavg, folder, lost=()):
    engine = Dropping(toy.engine(fedavg).local_sites, folder, lost=lost)
    return [digest(replace(done.state, memory={}).to_bytes()) for done in rounds(toy, fedavg, engine)]


@pytest.fixture
def never_asked(monkeypatch):
    """South is not asked in the rounds that this is called with."""

    def ask(*without: int) -> None:
        rounds = iter(range(1, 5))
        monkeypatch.setattr("medfed.federation.rounds.choose_sites",
                            lambda sites, *_: [s for s in sites if s != "south"] if next(rounds) in without else sites)

    return ask


@pytest.mark.parametrize("state", ["keep", "reset"])
@pytest.mark.parametrize("without", [(2,), (2, 3), (1,), (1, 2, 3)])
def test_an_update_that_did_not_count_is_as_if_it_had_not_been_asked_for(fedavg, tmp_path, never_asked, state, without):
    toy = ToySegmentation(training=Training(batch_size=4, optimizer_state=state))
    found = states(toy, fedavg, tmp_path / "dropped", {(number, "south") for number in without})
    never_asked(*without)
    assert found == states(toy, fedavg, tmp_path / "never")


def test_losing_what_a_site_kept_would_show(toy, fedavg, tmp_path, monkeypatch):
    """The control: a site that goes on from the round that did not count gives other bits."""
    monkeypatch.setattr(SiteStore, "_memory_after", lambda self, name, last: {})
    found = states(toy, fedavg, tmp_path / "dropped", {(2, "south")})
    monkeypatch.undo()
    rounds = iter(range(1, 5))
    monkeypatch.setattr("medfed.federation.rounds.choose_sites",
                        lambda sites, *_: [s for s in sites if s != "south"] if next(rounds) == 2 else sites)
    assert found != states(toy, fedavg, tmp_path / "never")


def test_the_file_of_the_round_that_counted_is_kept_as_long_as_none_other_counts(toy, fedavg, tmp_path):
    states(toy, fedavg, tmp_path, {(2, "south"), (3, "south"), (4, "south")})
    names = lambda site: sorted(path.name for path in (tmp_path / site).iterdir())  # noqa: E731
    assert names("south") == [f"round_0000{number}.site" for number in (1, 3, 4)]
    assert names("north") == ["round_00003.site", "round_00004.site"]


@pytest.fixture
def keeping() -> ToySegmentation:
    """Sites that keep their batch normalisation."""
    return ToySegmentation(architecture=UNet(features=(4, 4, 4, 8, 8, 4), norm="batch"))


def keepers(keeping, method, folder, **more):
    return Dropping(keeping.engine(method, local_batch_norm=True).local_sites, folder, **more)


def told(done) -> tuple:
    """What a round came to: weights, losses and the score of every site."""
    return digest(done.state.to_bytes()), done.history


@dataclass(frozen=True)
class Telling(Method):
    """Shares in every round what the network makes of an image, and adds it up."""

    shares = "every round"

    def share(self, data, network):
        with torch.no_grad():
            return {"seen": network(data.task.standardise(data.samples.batch([0]).image)).mean()[None]}

    def combine(self, state, shared, rng):
        return {"seen": torch.stack([tensors["seen"] for tensors in shared.values()]).sum(0)}


@pytest.mark.parametrize("without", [(2,), (2, 3), (1,), (1, 2, 3, 4)])
def test_after_a_round_that_did_not_count_a_site_validates_as_if_it_had_not_been_asked(
    keeping, fedavg, tmp_path, never_asked, without
):
    """It goes by the entries of its last round that counted, also by those of none."""
    lost = {(number, "south") for number in without}
    found = rounds(keeping, fedavg, keepers(keeping, fedavg, tmp_path / "dropped", lost=lost))
    never_asked(*without)
    expected = rounds(keeping, fedavg, keepers(keeping, fedavg, tmp_path / "never"))
    assert [told(done) for done in found] == [told(done) for done in expected]


@pytest.mark.parametrize("without", [(2,), (1, 2)])
def test_so_does_one_that_shares_in_every_round(keeping, tmp_path, without):
    """Beside a site that its letter to train never reached. To validate would put it right, and comes last."""
    method, lost, settings = Telling(), {(number, "south") for number in without}, replace(GOING_ON, validate_every=4)
    found = rounds(keeping, method, keepers(keeping, method, tmp_path / "dropped", lost=lost), settings)
    never = keepers(keeping, method, tmp_path / "never", lost=lost, is_on_the_way_down=True)
    expected = rounds(keeping, method, never, settings)
    assert [told(done) for done in found] == [told(done) for done in expected]


def test_validating_with_what_the_lost_round_left_would_show(keeping, fedavg, tmp_path, monkeypatch):
    """The control of the two tests above."""
    lost = {(2, "south")}
    found = rounds(keeping, fedavg, keepers(keeping, fedavg, tmp_path / "dropped", lost=lost))
    monkeypatch.setattr(
        "medfed.federation.rounds.requests_with_last_round", without_last_in_validate(requests_with_last_round)
    )
    wrong = rounds(keeping, fedavg, keepers(keeping, fedavg, tmp_path / "wrong", lost=lost))
    differ = {key for key in found[1].history if found[1].history[key] != wrong[1].history[key]}
    assert "validation_score/south" in differ and "validation_score/north" not in differ


def without_last_in_validate(made):
    def letters(kind, state, sites, number):
        found = made(kind, state, sites, number)
        if kind != "validate":
            return found
        return dict.fromkeys(found, Message(kind, state.weights, {}, {"round": number}))

    return letters


def test_a_site_that_starts_again_validates_with_what_it_kept(keeping, fedavg, tmp_path):
    """Its process is new after the training of round 2, and has its files alone."""
    engine = keepers(keeping, fedavg, tmp_path / "again")
    exchange = engine.exchange

    def restarting(kind, messages):
        if kind == "validate":
            fresh = keepers(keeping, fedavg, tmp_path / "again")
            engine.local_sites, engine._store = fresh.local_sites, fresh._store
        return exchange(kind, messages)

    engine.exchange = restarting
    whole = rounds(keeping, fedavg, keepers(keeping, fedavg, tmp_path / "whole"))
    assert [told(done) for done in rounds(keeping, fedavg, engine)] == [told(done) for done in whole]


def test_where_nothing_stays_at_the_sites_all_get_one_letter_to_validate(toy, fedavg, tmp_path):
    """With many clients a letter for each would be written a thousand times."""
    engine, seen = toy.engine(fedavg, folder=tmp_path), []
    exchange = engine.exchange
    engine.exchange = lambda kind, messages: (seen.append((kind, messages)), exchange(kind, messages))[1]
    rounds(toy, fedavg, engine)
    for messages in (messages for kind, messages in seen if kind == "validate"):
        assert len({id(message) for message in messages.values()}) == 1
        assert "last" not in next(iter(messages.values())).facts
