"""The global weights go to a site once, and every reply is the same as if they went with each request."""

from dataclasses import dataclass, replace

import pytest
import torch

from medfed.deployment.agreement import Agreement, Refused
from medfed.deployment.guarded_site import LEDGER, GuardedSite
from medfed.federation.message import WEIGHTS_NEEDED, Message, digest, n_bytes, weights_digest
from medfed.federation.model_transfer import ReceivedWeights, WeightsSender
from medfed.federation.privacy import Privacy
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.methods.elcfs import ELCFS
from medfed.methods.feddg_ga import FedDGGA
from medfed.testing.toy import ToySegmentation

ROUNDS = Federation(rounds=3)


@pytest.fixture
def toy() -> ToySegmentation:
    """Sites with one training step in a round, on small images."""
    return ToySegmentation(image_side=16, n_images=4)


@dataclass
class Echo:
    """An engine that records what it is given, and whose sites reply with the kind of the request."""

    forgetful: tuple[str, ...] = ()

    def exchange(self, kind, messages):
        self.sent = messages
        return {
            site: Message(WEIGHTS_NEEDED if site in self.forgetful and not message.weights else kind)
            for site, message in messages.items()
        }


def weights(value=1.0):
    return {"w": torch.full((2,), value), "n": torch.tensor(3)}


def named() -> Message:
    return Message("train", weights(), {}, {"round": 1, "last": 0}, weights_digest(weights()))


def models_down(rounds, site="north", kind=None):
    """Return how many times the model went to a site in each round, of one kind of request or of all."""
    weights = rounds[0].state.weights
    size = sum(map(n_bytes, weights.values()))
    down = [[row for row in done.ledger if (row["direction"], row["site"]) == ("down", site)] for done in rounds]
    sent = [[row for row in rows if row["content"] == "weight" and kind in (None, row["kind"])] for rows in down]
    return [sum(row["bytes"] for row in rows) / size for rows in sent]


@pytest.mark.parametrize("method", [FedDGGA(), ELCFS(alpha=0.1, min_patients=1)], ids=["every round", "once"])
def test_each_weights_go_to_a_site_once(toy, method):
    """The weights before round 1, and those after each of the three rounds for the validation."""
    rounds = list(federate(method, toy.engine(method), toy.start(method), ROUNDS, 0))
    assert models_down(rounds) == [2, 1, 1]
    assert models_down(rounds, kind="validate") == [1, 1, 1]
    if method.shares == "once":  # statistics of images alone
        assert models_down(rounds, kind="share") == [0, 0, 0]
        shared = {row["name"] for row in rounds[0].ledger if (row["kind"], row["content"]) == ("share", "statistic")}
        assert shared == {"windows"}


def test_weights_that_are_not_validated_go_with_the_next_request(toy):
    method, settings = FedDGGA(), replace(ROUNDS, validate_every=3)
    rounds = list(federate(method, toy.engine(method), toy.start(method), settings, 0))
    assert models_down(rounds) == [1, 1, 2]
    assert models_down(rounds, kind="share") == [1, 1, 1]


def test_a_site_that_has_lost_the_weights_is_sent_them_again(toy, fedavg):
    expected = list(federate(fedavg, toy.engine(fedavg), toy.start(fedavg), ROUNDS, 0))
    engine = toy.engine(fedavg)
    rounds = []
    for done in federate(fedavg, engine, toy.start(fedavg), ROUNDS, 0):
        rounds.append(done)
        engine._received = ReceivedWeights()  # as in a new process
    assert models_down(rounds) == [2, 2, 2]
    assert digest(rounds[-1].state.to_bytes()) == digest(expected[-1].state.to_bytes())


def test_only_sites_that_ask_are_sent_the_weights_again_and_both_requests_are_recorded():
    engine = Echo(forgetful=("b",))
    sender, request = WeightsSender(engine), replace(named(), weights_digest="")
    first, _ = sender.exchange("train", {"a": request, "b": request})
    request = replace(request, weights=request.weights, facts={"round": 1, "last": 1})
    replies, sent = sender.exchange("train", {"a": request, "b": request, "c": request})
    assert {site: reply.kind for site, reply in (first | replies).items()} == dict.fromkeys("abc", "train")
    assert [(way, {site: bool(message.weights) for site, message in messages.items()}) for way, messages in sent] == [
        ("down", {"a": False, "b": False, "c": True}),
        ("up", {"a": False, "b": False, "c": False}),
        ("down", {"b": True}),
        ("up", {"b": False}),
    ]
    assert set(engine.sent) == {"b"}
    sender = WeightsSender(engine := Echo())
    for _ in range(2):
        sender.exchange("train", {"a": request, "b": request})
        assert engine.sent["a"] is engine.sent["b"], "equal requests stay one object, so that they become bytes once"


def test_a_completed_request_has_the_same_bytes_however_its_weights_came():
    received, complete = ReceivedWeights(), replace(named(), weights_digest="")
    short = replace(named(), weights={})

    def completed(site: str, request: Message) -> Message | None:
        requests, missing = received.complete({site: request})
        assert list(requests) + missing == [site]
        return requests.get(site)

    assert completed("a", short) is None, "nothing was received"
    for request in (named(), short, short):
        assert completed("a", request).to_bytes() == complete.to_bytes()
    assert completed("b", short) is None, "another site of this process received them, this one did not"
    completed("a", short).weights["w"].zero_()
    assert completed("a", short).to_bytes() == complete.to_bytes(), "a change of one request reaches no other"
    other = Message("train", weights(2.0), {}, {}, weights_digest(weights(2.0)))
    assert completed("b", other) and completed("a", short) is None, "old weights are forgotten"


def test_the_checksum_travels_in_the_message_and_messages_without_it_keep_their_bytes():
    assert Message.from_bytes(named().to_bytes()).weights_digest == weights_digest(weights())
    assert b"weights_digest" not in replace(named(), weights_digest="").to_bytes()
    names = [weights_digest(entries) for entries in (weights(), weights(2.0), dict(reversed(weights().items())))]
    assert len(set(names)) == 3 and all(len(name) == 64 for name in names)


def test_the_noise_of_privacy_depends_on_the_request_and_not_on_how_its_weights_came(toy, fedavg):
    engine, start = toy.engine(fedavg, ("north",)), toy.start(fedavg).weights
    (site,) = engine.local_sites
    site.privacy = Privacy(clip=1.0, noise=0.1)
    site.settings = replace(site.settings, optimizer_state="reset")
    full = Message("train", start, {}, {"round": 1, "last": 0}, weights_digest(start))
    plain, other = replace(full, weights_digest=""), replace(full, facts={"round": 1, "last": 1}, weights_digest="")
    requests = (plain, full, replace(full, weights={}), other)
    replies = [engine.exchange("train", {"north": request})["north"] for request in requests]
    digests = [digest(reply.to_bytes()) for reply in replies]
    assert len(set(digests[:3])) == 1 and digests[3] != digests[0]


def test_a_repeated_request_without_weights_finds_the_stored_reply(toy, fedavg, tmp_path, monkeypatch):
    engine, start = toy.engine(fedavg, ("north",), folder=tmp_path), toy.start(fedavg).weights
    full = Message("train", start, {}, {"round": 1, "last": 0}, weights_digest(start))
    first = engine.exchange("train", {"north": full})["north"]
    short = replace(full, weights={}, facts={"round": 2, "last": 1})
    assert engine.local_sites[0].reply(short) == Message(WEIGHTS_NEEDED), "the engine keeps them, and not the site"
    monkeypatch.setattr(type(engine.local_sites[0]), "reply", None)  # it must not train again
    for request in (replace(full, weights={}), replace(full, weights_digest="")):
        assert engine.exchange("train", {"north": request})["north"].to_bytes() == first.to_bytes()


def guarded(folder) -> GuardedSite:
    (site,) = ToySegmentation().engine(ELCFS(alpha=0.1, min_patients=1), ("north",)).local_sites
    return GuardedSite(site, folder, Agreement(sends=("windows",), rounds=2, replies_per_round=2))


def test_a_hospital_asks_for_weights_without_counting_a_reply_and_lists_what_was_really_sent(tmp_path):
    start = ToySegmentation().start(ELCFS()).weights
    full = Message("validate", start, {}, {"round": 1}, weights_digest(start))
    short, site = replace(full, weights={}), guarded(tmp_path)
    assert site.reply(short) == Message(WEIGHTS_NEEDED)
    scores = site.reply(full)
    assert site.reply(short).facts == scores.facts and len({reply.checksum for reply in site.guard.replies}) == 1
    assert site.reply(replace(short, facts={"round": 2})).facts == scores.facts, "the same weights on the same images"
    rows = (tmp_path / LEDGER).read_text().splitlines()
    assert sum(",down,validate,fact,round; weights_digest,2,,67" in row for row in rows) == 4
    assert sum(",down,validate,weight,," in row for row in rows) == 1
    with pytest.raises(Refused, match="more than 2 times"):
        site.reply(short)


def test_a_hospital_refuses_a_request_without_weights_that_names_none_but_shares_statistics_of_images(tmp_path):
    site = guarded(tmp_path)
    assert site.reply(Message("validate", facts={"round": 1}, weights_digest="../x")) == Message(WEIGHTS_NEEDED)
    with pytest.raises(Refused, match="weights that do not fit its network"):
        site.reply(Message("train", facts={"round": 1, "last": 0}))
    assert set(site.reply(Message("share", facts={"round": 1})).tensors) == {"windows"}
