"""A hostile coordinator: of whatever it asks beyond what was agreed to the site never hears, and nothing leaves."""

import json
from dataclasses import replace

import pytest
import torch
from conftest import ToySegmentation

from medfed.deployment.agreement import MAX_BYTES_DOWN, Agreement, Guard, Refused
from medfed.deployment.guarded_site import COUNTS, LEDGER, MODEL, SECRET, GuardedSite
from medfed.federation.message import Message
from medfed.federation.site import Site
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.methods.stable_fdg import StableFDG

AGREED = Agreement(sends=("windows",), rounds=3, megabytes_per_round=1.0, replies_per_round=2)
FEDAVG = FedAvg()


@pytest.fixture
def never_called(monkeypatch):
    """Calling the site would fail."""

    def reply(self, message):
        raise AssertionError(f"the site was asked to {message.kind}")

    monkeypatch.setattr(Site, "reply", reply)


def desk(tmp_path, method=FEDAVG, agreement=AGREED) -> GuardedSite:
    (site,) = ToySegmentation().engine(method, sites=("north",)).local_sites
    return GuardedSite(site, tmp_path, agreement)


def letter(kind="train", method=FEDAVG, **facts) -> Message:
    facts = {"round": 1, **({"last": 0} if kind == "train" else {}), **facts}
    return Message(kind, ToySegmentation().start(method).weights, {}, facts)


def with_weight(change) -> Message:
    message = letter()
    name = next(iter(message.weights))
    return replace(message, weights={**message.weights, **change(name, message.weights[name])})


def huge() -> torch.Tensor:
    return torch.zeros(1).expand(MAX_BYTES_DOWN // 4 + 1)  # takes four bytes here


HOSTILE = {
    "another kind": (lambda: replace(letter(), kind="run"), "was asked to 'run'; agreed to share, train, validate"),
    "no kind at all": (lambda: replace(letter(), kind=["train"]), "was asked to"),
    "a path to read": (lambda: letter(path="/etc/passwd"), "was told 'path'; a coordinator says last and round alone"),
    "code to run": (lambda: letter(code="import os"), "was told 'code'"),
    "facts without names": (lambda: replace(letter(), facts=["round", 1]), "was told list for facts"),
    "a path for a round": (lambda: letter(round="../../x"), "expected a whole number"),
    "no round": (lambda: replace(letter(), facts={"last": 0}), "was told round None"),
    "true for a round": (lambda: letter(round=True), "expected a whole number"),
    "a round beyond": (lambda: letter(round=4, last=3), "was asked for round 4; agreed to rounds 1 to 3"),
    "a round before": (lambda: letter(round=0), "was asked for round 0"),
    "a memory of the future": (lambda: letter(round=2, last=2), "was told that round 2 counted last, before round 2"),
    "a memory of no round": (lambda: letter(last=-1), "was told that round -1 counted last"),
    "more weights": (lambda: with_weight(lambda name, _: {"spy": torch.ones(2)}), "1 entries are unknown.* 'spy'"),
    "other shapes": (lambda: with_weight(lambda name, entry: {name: torch.ones(7)}), r"do not fit its network: .*7"),
    "other dtypes": (lambda: with_weight(lambda name, entry: {name: entry.double()}), "torch.float64, expected"),
    "no weights": (lambda: replace(letter(), weights={}), "entries are missing"),
    "weights that are no numbers": (lambda: with_weight(lambda name, entry: {name: entry / 0}), "not finite"),
    "tensors that are no numbers": (lambda: replace(letter(), tensors={"x": torch.ones(1) / 0}), "'x', which is not"),
    "tensors without an end": (lambda: replace(letter(), tensors={"x": huge()}), "was sent 2048 MB of statistics"),
    "a share of a method that never shares": (lambda: letter("share"), "the method that it agreed to never shares"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_letter_beyond_the_agreement_never_reaches_the_site(tmp_path, never_called, case):
    make, sentence = HOSTILE[case]
    with pytest.raises(Refused, match=sentence):
        desk(tmp_path).reply(make())
    assert not (tmp_path / LEDGER).exists() and not (tmp_path / COUNTS).exists()


def test_the_letters_themselves_would_reach_it(tmp_path, never_called):
    """The control of the table above."""
    for kind in ("train", "validate"):
        with pytest.raises(AssertionError, match=f"the site was asked to {kind}"):
            desk(tmp_path).reply(letter(kind))


def test_to_share_later_is_refused_where_a_method_shares_once(tmp_path, never_called):
    method = ELCFS(alpha=0.1)
    with pytest.raises(Refused, match="was asked to share in round 2; .* shares before round 1 alone"):
        desk(tmp_path, method).reply(letter("share", method, round=2))


def test_to_share_later_is_what_a_method_does_that_shares_every_round():
    network = ToySegmentation().network(FedAvg()).state_dict()
    every = Guard(AGREED, network, shares="every round")
    every.check_request(letter("share", round=2))
    assert StableFDG().shares == "every round" and ELCFS().shares == "once"


def test_one_kind_is_answered_so_often_in_a_round_and_not_once_more_after_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(Site, "reply", lambda self, message: Message(message.kind))
    for _ in range(2):
        assert desk(tmp_path).reply(letter("validate")).kind == "validate"
    with pytest.raises(Refused, match="was asked to validate in round 1 more than 2 times"):
        desk(tmp_path).reply(letter("validate"))
    assert desk(tmp_path).reply(letter("validate", round=2)).kind == "validate"


@pytest.mark.parametrize(("answer", "sentence"), [
    (Message("train", tensors={"images": torch.ones(2)}), "'images' was about to leave; agreed to windows"),
    (Message("train", weights={"head.extra": torch.ones(2)}), "'head.extra' was about to leave; no weight of that"),
    (Message("train", tensors={"windows": torch.ones(300_000)}), "1.2 MB were about to leave in round 1, after 0.0 MB"),
])  # fmt: skip
def test_an_answer_beyond_the_agreement_never_leaves(tmp_path, monkeypatch, answer, sentence):
    monkeypatch.setattr(Site, "reply", lambda self, message: answer)
    with pytest.raises(Refused, match=sentence):
        desk(tmp_path).reply(letter("validate"))
    assert not (tmp_path / LEDGER).exists() and not (tmp_path / COUNTS).exists()


def test_what_stays_at_the_site_is_no_weight_that_may_leave():
    network = ToySegmentation().network(FedAvg()).state_dict()
    name = next(iter(network))
    guard = Guard(AGREED, network, stays=frozenset({name}))
    with pytest.raises(Refused, match=f"'{name}' was about to leave"):
        guard.check_reply(letter(), Message("train", weights={name: network[name]}))
    guard.check_request(replace(letter(), weights={n: entry for n, entry in network.items() if n != name}))


def test_the_megabytes_of_a_round_are_those_of_all_its_answers(tmp_path, monkeypatch):
    halves(monkeypatch, 1.0, 2.0)
    desk(tmp_path).reply(letter("validate"))
    with pytest.raises(Refused, match="0.6 MB were about to leave in round 1, after 0.6 MB; agreed to 1"):
        desk(tmp_path).reply(letter("validate"))
    counts = json.loads((tmp_path / COUNTS).read_text())
    assert (counts["answered"], counts["sent_bytes"]) == ({"validate 1": 1}, {"1": 600_000})


def halves(monkeypatch, *values: float) -> None:
    """The site's answers, one after another, of 0.6 MB each."""
    answers = iter([Message("train", tensors={"windows": torch.full((150_000,), value)}) for value in values])
    monkeypatch.setattr(Site, "reply", lambda self, message: next(answers))


def test_the_very_same_answer_to_the_very_same_letter_counts_once_and_is_written_down_again(tmp_path, monkeypatch):
    """As where a coordinator lost it; also after a restart here."""
    halves(monkeypatch, 1.0, 1.0, 1.0)
    for times in (1, 2):
        desk(tmp_path).reply(letter("validate"))
        counts = json.loads((tmp_path / COUNTS).read_text())
        assert (counts["answered"], counts["sent_bytes"]) == ({"validate 1": times}, {"1": 600_000})
        assert (tmp_path / LEDGER).read_text().count("1,north,up,train,windows,150000,float32,600000") == times
    with pytest.raises(Refused, match="was asked to validate in round 1 more than 2 times"):
        desk(tmp_path).reply(letter("validate"))


OTHERS = {
    "another kind": lambda first: letter("train"),
    "other weights": lambda first: replace(first, weights={name: entry + 1 for name, entry in first.weights.items()}),
    "other facts": lambda first: replace(first, facts={"round": 1, "last": 0}),
    "other tensors": lambda first: replace(first, tensors={"x": torch.zeros(1)}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_the_same_answer_to_another_letter_counts_again(tmp_path, monkeypatch, other):
    """That two letters have one answer is something to know."""
    halves(monkeypatch, 1.0, 1.0)
    first = letter("validate")
    desk(tmp_path).reply(first)
    with pytest.raises(Refused, match="after 0.6 MB; agreed to 1"):
        desk(tmp_path).reply(OTHERS[other](first))


def test_an_answer_that_differs_in_one_bit_counts_again(tmp_path, monkeypatch):
    halves(monkeypatch, 0.0, -0.0)
    desk(tmp_path).reply(letter("validate"))
    with pytest.raises(Refused, match="after 0.6 MB; agreed to 1"):
        desk(tmp_path).reply(letter("validate"))


def test_what_left_in_rounds_that_no_letter_comes_of_is_not_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(Site, "reply", lambda self, message: Message(message.kind))
    for number in (1, 2, 3):
        desk(tmp_path).reply(letter("validate", round=number))
    assert list(json.loads((tmp_path / COUNTS).read_text())["sent"]) == ["2", "3"]


def test_to_validate_goes_by_what_the_round_itself_left_and_training_does_not(tmp_path):
    guard = desk(tmp_path).guard
    guard.check_request(letter("validate", round=2, last=2))
    for kind in ("train", "share"):
        with pytest.raises(Refused, match="was told that round 2 counted last, before round 2"):
            guard.check_request(letter(kind, round=2, last=2))
    with pytest.raises(Refused, match="was told that round 3 counted last"):
        guard.check_request(letter("validate", round=2, last=3))


def test_what_was_agreed_to_is_answered_and_written_down(tmp_path):
    method = ELCFS(alpha=0.1, min_patients=1)
    found = desk(tmp_path, method)
    assert set(found.reply(letter("share", method)).tensors) == {"windows"}
    ledger = (tmp_path / LEDGER).read_text()
    assert "1,north,up,share,windows," in ledger and "1,north,down,share," in ledger


def test_the_end_leaves_the_model_and_sends_nothing(tmp_path, never_called):
    answer = desk(tmp_path).reply(letter("end", round=3))
    assert answer == Message("end") and (tmp_path / MODEL).is_file()


@pytest.mark.parametrize("values", [{"rounds": 0}, {"megabytes_per_round": 0.0}, {"replies_per_round": -1}])
def test_an_agreement_to_nothing_is_refused(values):
    with pytest.raises(ValueError, match="must be above 0"):
        Agreement(**values)


def test_a_coordinator_goes_back_one_round_at_most(tmp_path, never_called):
    """A round asked again with other weights would give a second look at the same images."""
    asked = desk(tmp_path)
    asked.guard.answered["train 3"] = 1
    asked.guard.check_request(letter(round=2, last=1))
    with pytest.raises(Refused, match="was asked to train in round 1, and has trained in round 3"):
        asked.reply(letter())


def test_the_key_of_the_noise_is_secret_and_outlives_a_restart(tmp_path):
    first = desk(tmp_path).site.noise_key
    key = tmp_path / SECRET
    assert len(first) == 32 and key.stat().st_mode & 0o077 == 0 and desk(tmp_path).site.noise_key == first
    (tmp_path / "other").mkdir()
    assert desk(tmp_path / "other").site.noise_key != first
