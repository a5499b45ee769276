"""A site whose reply was rejected or lost continues from its last accepted round."""

import warnings
from collections.abc import Collection
from dataclasses import dataclass, replace

import pytest
import torch
from toy_runs import small_toy

from medfed.core.errors import UserError
from medfed.engines.in_process import InProcess
from medfed.federation.message import digest, failed_reply
from medfed.federation.method import Method
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation, Training
from medfed.federation.site import Site
from medfed.testing.small_unet import SmallUNet
from medfed.testing.toy import ToyClassification, ToySegmentation

SETTINGS = Federation(rounds=4, quorum=1)
SITES = ("north", "south")


@pytest.fixture
def toy() -> ToyClassification:
    return small_toy()


@dataclass
class Dropping(InProcess):
    """An engine that loses the updates `lost`, given as (round, site), or the requests for them."""

    lost: Collection[tuple[int, str]] = ()
    loses_requests: bool = False

    def exchange(self, kind, messages):
        lost = [site for site, m in messages.items() if kind == "train" and (m.facts["round"], site) in self.lost]
        not_delivered = lost if self.loses_requests else []
        delivered = {site: message for site, message in messages.items() if site not in not_delivered}
        replies = super().exchange(kind, delivered)
        return {**replies, **dict.fromkeys(lost, failed_reply("its connection broke"))}


def rounds(toy, method, engine, settings=SETTINGS):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return list(federate(method, engine, toy.start(method), settings, 0))


def states(toy, fedavg, folder=None, lost=()):
    engine = Dropping(toy.engine(fedavg, SITES).local_sites, folder, lost=lost)
    return [digest(replace(done.state, memory={}).to_bytes()) for done in rounds(toy, fedavg, engine)]


@pytest.fixture
def never_asked(monkeypatch):
    """Return a function: south is not asked in the rounds that it is called with."""

    def ask(*without: int) -> None:
        rounds = iter(range(1, 5))
        choose = lambda sites, *_: [s for s in sites if s != "south"] if next(rounds) in without else sites  # noqa: E731
        monkeypatch.setattr("medfed.federation.rounds.choose_sites", choose)

    return ask


@pytest.mark.parametrize("state", ["keep", "reset"])
@pytest.mark.parametrize("without", [(2,), (2, 3), (1,), (1, 2, 3)])
def test_a_lost_update_is_as_one_that_was_not_requested(fedavg, tmp_path, never_asked, state, without):
    toy = small_toy(training=Training(batch_size=4, optimizer_state=state))
    obtained = states(toy, fedavg, tmp_path / "dropped", {(number, "south") for number in without})
    never_asked(*without)
    assert obtained == states(toy, fedavg)


def test_the_file_of_the_last_accepted_round_is_not_deleted(toy, fedavg, tmp_path):
    states(toy, fedavg, tmp_path, {(2, "south"), (3, "south"), (4, "south")})
    names = lambda site: sorted(path.name for path in (tmp_path / site).glob("*.site"))  # noqa: E731
    assert names("south") == [f"round_0000{number}.site" for number in (1, 3, 4)]
    assert names("north") == ["round_00003.site", "round_00004.site"]


@pytest.fixture
def local_toy() -> ToySegmentation:
    """Sites whose BatchNorm entries stay local. After several training steps these entries change the score."""
    return ToySegmentation(SmallUNet(norm="batch"), image_side=16)


def local_engine(local_toy, method, folder=None, **more):
    return Dropping(local_toy.engine(method, SITES, local_batch_norm=True).local_sites, folder, **more)


def results(done) -> tuple:
    """Return a round's weights, losses and the score of every site."""
    return digest(done.state.to_bytes()), done.history


@dataclass(frozen=True)
class SharingEveryRound(Method):
    """Shares the mean output for one image in every round, and sums it over the sites."""

    shares = "every round"

    def share(self, data, network):
        with torch.no_grad():
            return {"seen": network(data.task.standardise(data.samples.batch([0]).image)).mean()[None]}

    def combine(self, state, shared, rng):
        return {"seen": torch.stack([tensors["seen"] for tensors in shared.values()]).sum(0)}


@pytest.mark.parametrize("without", [(2,), (2, 3), (1,), (1, 2, 3, 4)])
def test_after_a_lost_update_a_site_validates_as_if_it_had_not_been_asked(
    local_toy, fedavg, tmp_path, never_asked, without
):
    """It uses the local entries of its last accepted round, or none if there is no accepted round."""
    lost = {(number, "south") for number in without}
    obtained = rounds(local_toy, fedavg, local_engine(local_toy, fedavg, tmp_path / "dropped", lost=lost))
    never_asked(*without)
    expected = rounds(local_toy, fedavg, local_engine(local_toy, fedavg))
    assert [results(done) for done in obtained] == [results(done) for done in expected]


@pytest.mark.parametrize("without", [(2,), (1, 2)])
def test_after_a_lost_update_a_site_shares_as_if_it_had_not_been_asked(local_toy, tmp_path, without):
    """Compared with a site that did not receive the request. It validates last, as validating would restore it."""
    method, lost = SharingEveryRound(), {(number, "south") for number in without}
    settings = replace(SETTINGS, validate_every=4)
    obtained = rounds(local_toy, method, local_engine(local_toy, method, tmp_path / "dropped", lost=lost), settings)
    never = local_engine(local_toy, method, lost=lost, loses_requests=True)
    expected = rounds(local_toy, method, never, settings)
    assert [results(done) for done in obtained] == [results(done) for done in expected]


def test_a_restarted_site_validates_with_the_entries_in_its_files(local_toy, fedavg, tmp_path):
    """It is built again after the training of round 2, and has only its files."""
    engine = local_engine(local_toy, fedavg, tmp_path / "again")
    exchange = engine.exchange

    def restarting(kind, messages):
        if kind == "validate":
            fresh = local_engine(local_toy, fedavg, tmp_path / "again")
            engine.local_sites, engine._store = fresh.local_sites, fresh._store
        return exchange(kind, messages)

    engine.exchange = restarting
    whole = rounds(local_toy, fedavg, local_engine(local_toy, fedavg))
    assert [results(done) for done in rounds(local_toy, fedavg, engine)] == [results(done) for done in whole]


def test_without_local_entries_all_sites_get_the_same_validation_request(toy, fedavg, tmp_path):
    """It is then encoded once, and not once for each of many clients."""
    engine, seen = toy.engine(fedavg, SITES, tmp_path), []
    exchange = engine.exchange
    engine.exchange = lambda kind, messages: (seen.append((kind, messages)), exchange(kind, messages))[1]
    rounds(toy, fedavg, engine)
    for messages in (messages for kind, messages in seen if kind == "validate"):
        assert len({id(message) for message in messages.values()}) == 1
        assert "last" not in next(iter(messages.values())).facts


def test_the_reason_of_a_dropped_update_names_no_file_of_the_site(toy, fedavg, monkeypatch, capsys):
    reply = Site.reply

    def fails_once(self, request):
        if (request.kind, request.facts.get("round"), self.name) == ("train", 2, "south"):
            raise UserError("data/south/Jane Doe/IM1: the file is damaged")
        return reply(self, request)

    monkeypatch.setattr(Site, "reply", fails_once)
    settings = replace(SETTINGS, rounds=2, on_bad_update="drop")
    engine = replace(toy.engine(fedavg, SITES), settings=settings)
    with pytest.warns(UserWarning, match="south: its update of round 2 was not received: could not reply") as warned:
        list(federate(fedavg, engine, toy.start(fedavg), settings, 0))
    assert not any("Jane" in str(warning.message) for warning in warned)
    assert "data/south/Jane Doe/IM1: the file is damaged" in capsys.readouterr().err
