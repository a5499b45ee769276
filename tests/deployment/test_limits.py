"""The limits of an agreement on facts, on the patients behind a statistic, and on epsilon."""

import json
import math
from dataclasses import replace

import pytest
import torch

from medfed.core.errors import UserError
from medfed.deployment.agreement import Agreement, Refused
from medfed.deployment.dry_run import dry_run, format_report
from medfed.deployment.guard import Guard
from medfed.deployment.guarded_site import LEDGER, GuardedSite, describe_participation
from medfed.deployment.hospital_state import REPLIES, SentReply, count_releases, read_replies
from medfed.federation.message import Message
from medfed.federation.privacy import Privacy
from medfed.federation.privacy_accounting import Releases, epsilon
from medfed.federation.site import Site
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.methods.feddg_ga import FedDGGA
from medfed.methods.fisc import FISC
from medfed.methods.scaffold import SCAFFOLD
from medfed.methods.stable_fdg import StableFDG
from medfed.testing.toy import ToySegmentation

FACTS = {"examples": 10, "steps": 3, "loss": 0.5}
STYLES = StableFDG(stages=(1, 2), attention=False)
FEDAVG, NO_NOISE = FedAvg(), Privacy()
NOISE = Privacy(clip=1.0, noise=4.0, statistics_clip=1.0, statistics_noise=4.0)


def site_of(method, privacy=NO_NOISE, rounds=1) -> Site:
    (site,) = ToySegmentation().engine(method, sites=("north",)).local_sites
    return replace(site, privacy=privacy, rounds=rounds)


def guarded(tmp_path, method=FEDAVG, privacy=NO_NOISE, **values) -> GuardedSite:
    agreement = Agreement(**{"sends": ("*",), "rounds": 100, "replies_per_round": 9, **values})
    return GuardedSite(site_of(method, privacy), tmp_path, agreement)


def request(kind="train", method=FEDAVG, **facts) -> Message:
    weights = ToySegmentation().start(method).weights
    return Message(kind, weights, {}, {"round": 1, **({"last": 0} if kind == "train" else {}), **facts})


@pytest.fixture
def replies(monkeypatch):
    """`replies(a, b)` makes the sites send these replies, one after another."""

    def send(*messages):
        left = iter(messages)
        monkeypatch.setattr(Site, "reply", lambda self, request: next(left))

    return send


# Facts


def test_facts_count_like_tensors_with_their_names(tmp_path, replies):
    """Three facts: 8 + 5 + 4 letters, and the JSON texts 10, 3 and 0.5."""
    replies(*2 * [Message("train", facts=FACTS)])
    with pytest.raises(Refused, match="agrees.megabytes_per_round: is 2.2e-05, but .* would send 2.3e-05 MB; increase"):
        guarded(tmp_path, megabytes_per_round=22e-6).reply(request())
    site = guarded(tmp_path)
    site.reply(request())
    assert [reply.n_bytes for reply in read_replies(tmp_path)] == [17 + 2 + 1 + 3]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("train", "diagnosis"),
        ("train", "score"),
        ("validate", "loss"),
        ("share", "pixels"),
        ("validate", "live_triplets"),
    ],
)
def test_a_fact_that_such_a_reply_does_not_have_is_refused(tmp_path, replies, kind, name):
    replies(Message(kind, facts={name: 1}))
    method = FISC(transfer="moments")  # `live_triplets` is one of its facts, but only of a reply to "train"
    site = guarded(tmp_path, method)
    with pytest.raises(Refused, match=f"the fact '{name}' was about to leave, but the facts of a reply to") as error:
        site.reply(request(kind, method))
    assert name not in error.value.sent.split(";")[0], "the name could say something, too"
    assert f",{kind},fact,{name}," not in (tmp_path / LEDGER).read_text() and not (tmp_path / REPLIES).exists()


@pytest.mark.parametrize(
    "fact", ["x" * 50, "1", [0.5], {"a": 1}, None, True, float("nan"), float("inf"), 10**18 + 1], ids=repr
)
def test_a_fact_is_one_finite_number(tmp_path, replies, fact):
    replies(Message("train", facts={**FACTS, "loss": fact}))
    with pytest.raises(Exception, match="'loss' was about to leave as|its reply cannot be sent"):
        guarded(tmp_path).reply(request())
    assert ",up,train," not in (tmp_path / LEDGER).read_text() and not (tmp_path / REPLIES).exists()


# Patients behind a statistic


@pytest.mark.parametrize(("method", "allowed"), [(ELCFS(alpha=0.1), 1), (STYLES, 5)], ids=["images", "site"])
def test_a_statistic_of_fewer_patients_than_agreed_is_refused(tmp_path, method, allowed):
    """The site has ten images of five patients."""
    assert guarded(tmp_path, method, min_patients=allowed).reply(request("share", method)).tensors
    (other := tmp_path / "other").mkdir()
    with pytest.raises(
        Refused, match=f"agrees.min_patients: is {allowed + 1}, but .* computed from {allowed} patients?;"
    ):
        guarded(other, method, min_patients=allowed + 1).reply(request("share", method))
    assert ",up,share," not in (other / LEDGER).read_text() and not (other / REPLIES).exists()


def test_the_refusal_says_what_helps_and_sends_no_number_of_patients(tmp_path):
    method = ELCFS(alpha=0.1)
    with pytest.raises(Refused) as error:
        guarded(tmp_path, method, min_patients=5).reply(request("share", method))
    for words in ("'windows' has numbers that are computed from 1 patient", "set method.exchange to false", "harmofl"):
        assert words in str(error.value)
    assert str(error.value).endswith("decrease it if you agree")
    (up,) = (row for row in (tmp_path / LEDGER).read_text().splitlines() if ",up," in row)
    assert up.endswith(f",why,1,,{len(json.dumps(error.value.sent))}")
    assert "1" not in error.value.sent and "5" not in error.value.sent and "'windows'" in error.value.sent


def test_a_method_that_says_nothing_about_patients_is_taken_for_one_that_shares_single_patients(tmp_path):
    class Forgetful(FedAvg):
        @property
        def shares(self):
            return "once"

        def share(self, site, network):
            return {"mean": torch.zeros(3)}

    with pytest.raises(
        Refused, match="min_patients: is 2, .* 'mean' has numbers that are computed from 1 patient; decr"
    ):
        guarded(tmp_path, Forgetful(), min_patients=2).reply(request("share"))


def test_a_statistic_of_which_no_number_of_patients_is_known_counts_as_one_of_a_single_patient(tmp_path):
    guard = guarded(tmp_path, min_patients=2).guard
    reply = Message("train", tensors={"mean": torch.zeros(3), "sum": torch.zeros(3)})
    with pytest.raises(Refused, match="'mean' has numbers that are computed from 1 patient;"):
        guard.check_reply(request(), reply, {"sum": 5})


def test_statistics_that_are_sent_with_weights_are_checked_too_also_after_a_restart(tmp_path, monkeypatch):
    """A stored reply is sent again without training; the numbers of its patients are stored with it."""
    method = SCAFFOLD()
    with pytest.raises(Refused, match="'change/.*' has numbers that are computed from 5 patients"):
        guarded(tmp_path, method, min_patients=6).reply(request("train", method))
    monkeypatch.setattr(Site, "reply", None)  # calling it would fail
    assert guarded(tmp_path, method, min_patients=5).reply(request("train", method)).tensors


def test_the_dry_run_shows_the_patients_and_refuses_what_would_be_refused(tmp_path):
    method = ELCFS(alpha=0.1)
    site = site_of(method)
    rows = dry_run(site, ToySegmentation().start(method), 0)
    assert [(reply.kind, n_patients) for reply, n_patients in rows if n_patients] == [("share", {"windows": 1})]
    text = format_report(rows, Guard(Agreement(), site), "elcfs", 3)
    (line,) = (line.split() for line in text.splitlines() if " windows " in line)
    assert line[0] == "share" and line[-1] == "1"
    Guard(Agreement(sends=("windows",)), site).check_plan(rows, "a.yaml")
    with pytest.raises(UserError) as error:
        Guard(Agreement(min_patients=2), site).check_plan(rows, "a.yaml")
    first, second = error.value.sentences
    assert first.startswith("a.yaml: agrees.sends: ") and second.startswith("a.yaml: agrees.min_patients: ")
    assert "computed from 1 patient; ask the coordinator to set method.exchange" in second


# Epsilon


def trained(value: float) -> Message:
    weights = {name: torch.full_like(entry, value) for name, entry in ToySegmentation().start(FedAvg()).weights.items()}
    return Message("train", weights, {}, FACTS)


def released(n: int, n_statistics: int = 0, noise: float = 4.0) -> Releases:
    return +Releases({("noise", noise): n, ("statistics_noise", noise): n_statistics})


def epsilon_of(n: int) -> float:
    return epsilon(released(n), 1e-5)


def test_replies_that_differ_add_up_and_the_first_above_the_budget_is_refused(tmp_path, replies):
    pytest.importorskip("dp_accounting")
    replies(trained(1.0), trained(2.0), trained(3.0))
    limit = epsilon_of(2)
    for number in (1, 2):  # each time after a restart
        site = guarded(tmp_path, privacy=NOISE, max_epsilon=limit)
        site.reply(request(round=number))
        assert count_releases(site.guard.replies) == released(number)
    site = guarded(tmp_path, privacy=NOISE, max_epsilon=limit)
    sentence = f"is {limit:g}, but epsilon would be {epsilon_of(3):.4g} .delta 1e-05. after 3 messages with"
    with pytest.raises(Refused, match=sentence):
        site.reply(request(round=3))
    assert [reply.round for reply in read_replies(tmp_path)] == [1, 2]
    assert guarded(tmp_path, privacy=NOISE, max_epsilon=epsilon_of(3) + 0.01).reply(request(round=3)).weights


@pytest.mark.parametrize(
    ("method", "privacy", "kind", "key"),
    [
        (ELCFS(alpha=0.1), Privacy(), "train", "noise"),
        (ELCFS(alpha=0.1), Privacy(clip=1.0, noise=1.0), "share", "statistics_noise"),
        (SCAFFOLD(), Privacy(clip=1.0, noise=1.0), "train", "statistics_noise"),
    ],
)
def test_without_noise_nothing_leaves_if_there_is_a_budget(tmp_path, method, privacy, kind, key):
    with pytest.raises(Refused, match=f"epsilon is infinite, because privacy.{key} of the plan is 0"):
        guarded(tmp_path, method, privacy, max_epsilon=100.0).reply(request(kind, method))
    assert f",up,{kind}," not in (tmp_path / LEDGER).read_text()


def test_validation_scores_cost_no_epsilon_also_if_more_was_spent_before(tmp_path):
    site = guarded(tmp_path, max_epsilon=0.1)
    site.guard.replies = [SentReply(1, "train", "", 9, 0.0, None)]
    assert site.reply(request("validate")).facts.keys() <= {"score"}


PLANNED = [(FedAvg(), 0), (ELCFS(alpha=0.1), 1), (FedDGGA(), 14), (STYLES, 7), (SCAFFOLD(), 8)]


@pytest.mark.parametrize(("method", "n_statistics"), PLANNED, ids=lambda value: type(value).__name__)
def test_the_releases_of_a_plan_follow_from_its_first_round(method, n_statistics):
    site = site_of(method, rounds=7)
    sent = dry_run(site, ToySegmentation().start(method), 0)
    assert Guard(Agreement(), site).planned_releases(sent) == released(7, n_statistics, noise=0.0)


def test_a_reply_counts_with_the_noise_with_which_it_left_also_under_a_later_plan(tmp_path, monkeypatch, replies):
    """More noise in a later plan does not change what an earlier plan has revealed."""
    pytest.importorskip("dp_accounting")
    quiet, loud = (replace(NOISE, noise=noise) for noise in (1.0, 100.0))
    replies(trained(1.0), trained(2.0))
    guarded(tmp_path, privacy=quiet, max_epsilon=9.0).reply(request())
    site = guarded(tmp_path, privacy=loud, max_epsilon=9.0)
    site.reply(request(round=2))
    spent = Releases({("noise", 1.0): 1, ("noise", 100.0): 1})
    assert count_releases(read_replies(tmp_path)) == spent
    assert f"{epsilon(spent, 1e-5):.4g} of at most 9" in describe_participation(tmp_path, site.agreement)
    monkeypatch.undo()
    sent = dry_run(site.site, ToySegmentation().start(FEDAVG), 0)
    for rounds, n_left in ((1, 0), (5, 3)):
        site.site.rounds = rounds
        assert site.guard.planned_releases(sent) == spent + Releases({("noise", 100.0): n_left})
    site.guard.replies = [SentReply(1, "survey", "a", 9, None, None)]
    assert site.guard.planned_releases(sent) == Releases({("noise", 100.0): 5}), "a survey is no training round"
    site.guard.replies = [*read_replies(tmp_path), SentReply(3, "train", "b", 9, 0.0, None)]
    with pytest.raises(UserError, match="epsilon is infinite, because a reply left without noise, under an earlier"):
        Guard(Agreement(max_epsilon=4.0), site.site, site.guard.replies).check_plan(sent, "a.yaml")
    site.guard.replies = read_replies(tmp_path)
    with pytest.raises(UserError, match="is 4, but epsilon would be"):
        Guard(Agreement(max_epsilon=4.0), site.site, site.guard.replies).check_plan(sent, "a.yaml")


def test_a_plan_that_needs_more_than_the_budget_is_refused_before_joining():
    pytest.importorskip("dp_accounting")
    start = ToySegmentation().start(FedAvg())
    plain, noisy = site_of(FedAvg(), rounds=10), site_of(FedAvg(), NOISE, rounds=10)
    rows, needed = dry_run(plain, start, 0), epsilon_of(10)
    with pytest.raises(UserError, match="a.yaml: agrees.max_epsilon: .* because privacy.noise of the plan is 0"):
        Guard(Agreement(max_epsilon=1e6), plain).check_plan(rows, "a.yaml")
    with pytest.raises(UserError, match=f"is 0.1, but epsilon would be {needed:.4g} .delta"):
        Guard(Agreement(max_epsilon=0.1), noisy).check_plan(rows, "a.yaml")
    Guard(Agreement(max_epsilon=math.ceil(needed)), noisy).check_plan(rows, "a.yaml")
    text = format_report(rows, Guard(Agreement(max_epsilon=100.0), noisy), "fedavg", 10)
    assert f"Epsilon of all rounds, with what has left before, is {needed:.4g} (delta 1e-05); facts and" in text


def test_at_the_end_the_hospital_is_told_what_left_and_what_is_spent(tmp_path, replies):
    pytest.importorskip("dp_accounting")
    replies(trained(1.0))
    site = guarded(tmp_path, privacy=NOISE, max_epsilon=50.0)
    site.reply(request())
    n_bytes = sum(4 * entry.numel() for entry in request().weights.values())
    first, second = describe_participation(tmp_path, site.agreement).splitlines()
    assert first == (
        f"Sent: {n_bytes + 6:,} bytes (weights {n_bytes:,}, statistics 0, facts 6). Received: "
        f"{n_bytes + 2:,} bytes (weights {n_bytes:,}, statistics 0, facts 2)."
    )
    assert second == (
        f"Epsilon of the weights and statistics that left: {epsilon_of(1):.4g} of at most 50 (delta "
        "1e-05). Facts and whole numbers left without noise."
    )
    assert len(describe_participation(tmp_path, Agreement()).splitlines()) == 1


ZERO = ["rounds", "megabytes_per_round", "replies_per_round", "min_patients", "max_epsilon", "delta"]


@pytest.mark.parametrize(("limit", "value"), [*((limit, 0) for limit in ZERO), ("delta", 1)])
def test_limits_out_of_range_are_refused(limit, value):
    with pytest.raises(ValueError, match=f"{limit}: expected "):
        Agreement(**{limit: value})
