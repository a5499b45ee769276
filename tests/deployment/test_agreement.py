"""A hostile coordinator: a request beyond the agreement never reaches the site, and nothing leaves."""

from dataclasses import replace

import pytest
import torch

from medfed.deployment.agreement import Agreement, Refused
from medfed.deployment.guard import Guard
from medfed.deployment.guarded_site import LEDGER, MODEL, GuardedSite
from medfed.deployment.hospital_state import REPLIES, SentReply, count_releases, read_replies
from medfed.federation.message import WEIGHTS_NEEDED, Message
from medfed.federation.privacy_accounting import Releases
from medfed.federation.site import Site
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.methods.stable_fdg import StableFDG
from medfed.testing.toy import ToySegmentation

AGREED = Agreement(sends=("windows",), rounds=3, megabytes_per_round=1.0, replies_per_round=2)
FEDAVG = FedAvg()


@pytest.fixture
def never_called(monkeypatch):
    """Make any call of the site fail."""

    def reply(self, request):
        raise AssertionError(f"the site was asked to {request.kind}")

    monkeypatch.setattr(Site, "reply", reply)


def guarded_site(tmp_path, method=FEDAVG, agreement=AGREED) -> GuardedSite:
    (site,) = ToySegmentation().engine(method, sites=("north",)).local_sites
    return GuardedSite(site, tmp_path, agreement)


def request(kind="train", method=FEDAVG, **facts) -> Message:
    facts = {"round": 1, **({"last": 0} if kind == "train" else {}), **facts}
    return Message(kind, ToySegmentation().start(method).weights, {}, facts)


def with_weight(change) -> Message:
    message = request()
    name = next(iter(message.weights))
    return replace(message, weights={**message.weights, **change(name, message.weights[name])})


HOSTILE = {
    "another kind": (lambda: replace(request(), kind="run"), "asked to 'run', but agreed to share, train, validate"),
    "no kind at all": (lambda: replace(request(), kind=["train"]), r"was asked to '\['train'\]', but agreed to share"),
    "a path to read": (lambda: request(path="/etc/passwd"), "value 'path', but only the values last and round are"),
    "code to run": (lambda: request(code="import os"), "was sent a request with the unknown value 'code'"),
    "a path instead of a round": (lambda: request(round="../../x"), "was sent '../../x' as 'round'; expected"),
    "no round": (lambda: replace(request(), facts={"last": 0}), "was sent None as 'round'; expected a whole"),
    "true instead of a round": (lambda: request(round=True), "was sent True as 'round'; expected a whole number"),
    "text instead of the last round": (lambda: request(last="0"), "was sent '0' as 'last'; expected a whole number"),
    "a list instead of a number": (lambda: request("share", moments=[1]), r"was sent \[1\] as 'moments'; expected"),
    "a round after the last": (lambda: request(round=4, last=3), "request of round 4, but agreed to rounds 1 to 3"),
    "a round before the first": (lambda: request(round=0), "was sent a request of round 0"),
    "a last round in the future": (lambda: request(round=2, last=2), "2 as its last .*; expected a round from 0 to 1"),
    "a negative last round": (lambda: request(last=-1), "was sent -1 as its last accepted round"),
    "more weights": (lambda: with_weight(lambda name, _: {"spy": torch.ones(2)}), r"unknown entries \(1\).* 'spy'"),
    "other shapes": (lambda: with_weight(lambda name, entry: {name: torch.ones(7)}), r"do not fit its network: .*7"),
    "other dtypes": (lambda: with_weight(lambda name, entry: {name: entry.double()}), "torch.float64, expected"),
    "no weights": (lambda: replace(request(), weights={}), "lacks expected entries"),
    "weights that are not finite": (
        lambda: with_weight(lambda name, entry: {name: entry / 0}),
        "NaN or infinite values",
    ),
    "tensors that are not finite": (
        lambda: replace(request(), tensors={"x": torch.ones(1) / 0}),
        "sent 'x', which contains",
    ),
    "statistics to validate": (
        lambda: replace(request("validate"), tensors={"x": torch.ones(1)}),
        "a request to 'validate', which has none",
    ),
    "statistics at the end": (
        lambda: replace(request("end"), tensors={"x": torch.ones(1)}),
        "a request to 'end', which has none",
    ),
    "sharing with a method that never shares": (lambda: request("share"), "but the agreed plan never does this"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_request_beyond_the_agreement_never_reaches_the_site(tmp_path, never_called, case):
    make, sentence = HOSTILE[case]
    with pytest.raises(Refused, match=sentence):
        guarded_site(tmp_path).reply(make())
    down, up = rows_of(tmp_path, "down"), rows_of(tmp_path, "up")
    assert down and [row.split(",")[3:6] for row in up] == [["failed", "fact", "why"]], "only the sentence left"
    assert not (tmp_path / REPLIES).exists()


@pytest.mark.parametrize("kind", ["train", "share"])
def test_refused_weights_are_not_kept_for_a_request_that_has_only_their_checksum(tmp_path, never_called, kind):
    """A request to share the windows of ELCFS needs no weights, but the site keeps those that come with it."""
    site = guarded_site(tmp_path, ELCFS(alpha=0.1))
    spy = replace(with_weight(lambda *_: {"spy": torch.ones(2)}), kind=kind, weights_digest="x")
    with pytest.raises(Refused, match=r"unknown entries \(1\).* 'spy'"):
        site.reply(spy)
    assert site.reply(replace(spy, weights={})) == Message(WEIGHTS_NEEDED)


def rows_of(folder, direction: str) -> list[str]:
    """The rows of the hospital's ledger of one direction."""
    return [row for row in (folder / LEDGER).read_text().splitlines() if f",{direction}," in row]


def test_sharing_after_round_1_is_refused_unless_the_method_shares_every_round(tmp_path, never_called):
    once, every = ELCFS(alpha=0.1), StableFDG(stages=(1, 2), attention=False)
    assert (once.shares, every.shares) == ("once", "every round")
    with pytest.raises(Refused, match="was asked to share in round 2, but the agreed plan does this before round 1"):
        guarded_site(tmp_path, once).reply(request("share", once, round=2))
    guarded_site(tmp_path, every).guard.check_request(request("share", every, round=2))


def test_replies_of_one_kind_in_a_round_are_limited_also_after_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(Site, "reply", lambda self, request: Message(request.kind))
    for _ in range(2):
        assert guarded_site(tmp_path).reply(request("validate")).kind == "validate"
    with pytest.raises(Refused, match="was asked to validate in round 1 more than 2 times"):
        guarded_site(tmp_path).reply(request("validate"))
    assert guarded_site(tmp_path).reply(request("validate", round=2)).kind == "validate"


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (
            Message("train", tensors={"images": torch.ones(2)}),
            "agrees.sends: the statistics 'images', which are not in the list",
        ),
        (Message("train", weights={"head.extra": torch.ones(2)}), "'head.extra' was about to leave, but weights of"),
        (Message("train", tensors={"windows": torch.ones(300_000)}), "agrees.megabytes_per_round: is 1, but .* 1.2 MB"),
        (
            Message("train", weights=dict.fromkeys(request().weights, torch.ones(300_000))),
            "agrees.megabytes_per_round: is 1, but ",
        ),
    ],
)
def test_a_reply_beyond_the_agreement_never_leaves(tmp_path, monkeypatch, reply, sentence):
    monkeypatch.setattr(Site, "reply", lambda self, request: reply)
    with pytest.raises(Refused, match=sentence):
        guarded_site(tmp_path).reply(request("validate"))
    assert [row.split(",")[3:6] for row in rows_of(tmp_path, "up")] == [["failed", "fact", "why"]]
    assert not (tmp_path / REPLIES).exists()


def test_local_entries_may_not_leave(tmp_path):
    (site,) = ToySegmentation().engine(FEDAVG, sites=("north",)).local_sites
    network = site.network.state_dict()
    name = next(iter(network))
    guard = Guard(AGREED, replace(site, local_keys=frozenset({name})))
    with pytest.raises(Refused, match=f"'{name}' was about to leave"):
        guard.check_reply(request(), Message("train", weights={name: network[name]}), {})
    guard.check_request(replace(request(), weights={n: entry for n, entry in network.items() if n != name}))


def sent_bytes(folder) -> list[int]:
    """The bytes of each reply that left."""
    return [reply.n_bytes for reply in read_replies(folder)]


def replies_of_0_6_mb(monkeypatch, *values: float) -> None:
    """Make the site send one reply of 0.6 MB after another, filled with these values."""
    replies = iter([Message("train", tensors={"windows": torch.full((150_000,), value)}) for value in values])
    monkeypatch.setattr(Site, "reply", lambda self, request: next(replies))


def test_an_equal_reply_to_an_equal_request_counts_once_and_is_recorded_twice(tmp_path, monkeypatch):
    """This happens if the coordinator lost the first reply; the site may have been restarted in between."""
    replies_of_0_6_mb(monkeypatch, 1.0, 1.0)
    for times in (1, 2):
        guarded_site(tmp_path).reply(request("validate"))
        assert sent_bytes(tmp_path) == times * [600_000] and len({one.checksum for one in read_replies(tmp_path)}) == 1
        assert count_releases(read_replies(tmp_path)) == Releases({("statistics_noise", 0.0): 1})
        row = "1,north,up,train,statistic,windows,1,150000,600000"
        assert (tmp_path / LEDGER).read_text().count(row) == times


OTHERS = {  # (the changed request, the value of the second reply)
    "another kind": (lambda first: request("train"), 0.0),
    "other weights": (lambda first: replace(first, weights={n: w + 1 for n, w in first.weights.items()}), 0.0),
    "other facts": (lambda first: replace(first, facts={"round": 1, "last": 0}), 0.0),
    "other tensors": (lambda first: replace(first, tensors={"x": torch.zeros(1)}), 0.0),
    "a reply that differs in one bit": (lambda first: first, -0.0),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_reply_or_an_equal_one_to_another_request_counts_again(tmp_path, monkeypatch, other):
    """That two requests have equal replies is information, too."""
    change, value = OTHERS[other]
    replies_of_0_6_mb(monkeypatch, 0.0, value)
    first = request("train" if other == "other tensors" else "validate")  # only a request to train has tensors
    guarded_site(tmp_path).reply(first)
    with pytest.raises(Refused, match="agrees.megabytes_per_round: is 1, but a round would send 1.2 MB"):
        guarded_site(tmp_path).reply(change(first))
    assert sent_bytes(tmp_path) == [600_000]


def test_validation_may_use_the_memory_of_its_own_round_but_training_may_not(tmp_path):
    guard = guarded_site(tmp_path).guard
    guard.check_request(request("validate", round=2, last=2))
    for kind in ("train", "share"):
        with pytest.raises(Refused, match="was sent 2 as its last accepted round; expected a round from 0 to 1"):
            guard.check_request(request(kind, round=2, last=2))
    with pytest.raises(Refused, match="was sent 3 as its last accepted round"):
        guard.check_request(request("validate", round=2, last=3))


def test_an_agreed_request_is_replied_to_and_recorded(tmp_path):
    method = ELCFS(alpha=0.1, min_patients=1)
    site = guarded_site(tmp_path, method)
    assert set(site.reply(request("share", method)).tensors) == {"windows"}
    ledger = (tmp_path / LEDGER).read_text()
    assert "1,north,up,share,statistic,windows," in ledger and "1,north,down,share,fact," in ledger


def test_the_end_stores_the_model_and_sends_nothing(tmp_path, never_called):
    reply = guarded_site(tmp_path).reply(request("end", round=3))
    assert reply == Message("end") and (tmp_path / MODEL).is_file()


def test_a_coordinator_may_repeat_at_most_the_round_before_the_latest(tmp_path, never_called):
    """A repeated round with other weights would reveal more about the same images."""
    site = guarded_site(tmp_path)
    site.guard.replies = [SentReply(number, "train", "", 0, 1.0, None) for number in (1, 3)]
    site.guard.check_request(request(round=2, last=1))
    with pytest.raises(Refused, match="was asked to train in round 1, but has already replied in round 3"):
        site.reply(request())
