"""One site of four sends a bad reply: the model stays finite and the error names the site, for every method."""

import warnings
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from toy_runs import changing_replies, small_toy

from medfed.core.errors import UserError
from medfed.federation.message import Message, digest, failed_reply
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.functional.weights import change_norm
from medfed.methods.coordinate_median import CoordinateMedian
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.methods.fedbn import FedBN
from medfed.methods.feddg_ga import FedDGGA
from medfed.methods.fedgma import FedGMA
from medfed.methods.fednova import FedNova
from medfed.methods.norm_clipping import NormClipping
from medfed.methods.scaffold import SCAFFOLD
from medfed.methods.stable_fdg import StableFDG
from medfed.methods.trimmed_mean import TrimmedMean

SITES = ("east", "north", "south", "west")
BAD = "south"
ROBUST = [CoordinateMedian(), TrimmedMean(), NormClipping()]
METHODS = [*ROBUST, FedAvg(), FedGMA(), SCAFFOLD(), FedNova(), FedBN(), FedDGGA()]
DROP = Federation(rounds=1, on_bad_update="drop", quorum=3)
ANY_SIZE = replace(DROP, largest_change=None)  # what the methods do without the comparison of sizes
NAN, INF = float("nan"), float("inf")


@dataclass
class Recorded:
    """Sites that return recorded replies; `poison(kind, replies)` may change them."""

    replies: dict[str, dict[str, Message]]
    poison: object = None

    def sites(self):
        return list(SITES)

    def exchange(self, kind, messages):
        recorded_replies = {site: self.replies[kind][site] for site in messages}
        return self.poison(kind, recorded_replies) if self.poison else recorded_replies


@cache
def parameters() -> frozenset[str]:
    return small_toy().start(FedAvg()).parameters


def learned(weights):
    """Return the entries that are parameters, without the buffers."""
    return {name: entry for name, entry in weights.items() if name in parameters()}


@cache
def recorded(method):
    """Return the start state and the replies of the toy sites in round 1, for all tests of a method."""
    recorded_replies, start = {}, small_toy().start(method)
    record = lambda kind, _, replies: recorded_replies.setdefault(kind, replies)  # noqa: E731
    engine = changing_replies(small_toy().engine(method, SITES), record)
    list(federate(method, engine, start, Federation(rounds=1), 0))
    return start, recorded_replies


@cache
def digest_without_bad_site(method) -> str:
    """Return the digest of the state if the bad site sends no update."""
    return digest(one_round(method, missing)[0].state.to_bytes())


def one_round(method, poison=None, settings=DROP):
    """Run one round; return it and the warnings."""
    start, replies = recorded(method)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        (done,) = federate(method, Recorded(replies, poison), start, settings, 0)
    return done, [str(one.message) for one in warned if one.category is UserWarning]


def poisoned(change, kind="train"):
    """Return a poison that applies `change` to the bad site's replies of one kind."""

    def poison(of, replies):
        return {**replies, BAD: change(replies[BAD])} if of == kind else replies

    return poison


def missing(of, replies):
    """A poison: the bad site sends no update."""
    return {site: reply for site, reply in replies.items() if of != "train" or site != BAD}


def weights(change):
    """Change the first parameter."""

    def changed(all_weights):
        first = next(iter(learned(all_weights)))
        return {first: change(all_weights[first])}

    return entries(changed)


def in_a_buffer(value):
    """Change one element of a running variance; for FedBN, whose updates hold none, of the last weight."""

    def changed(message):
        name = next((n for n in message.weights if n.endswith("running_var")), list(message.weights)[-1])
        entry = message.weights[name].clone()
        entry.view(-1)[-1] = value
        return replace(message, weights={**message.weights, name: entry})

    return changed


def without_first(message):
    return replace(message, weights=dict(list(message.weights.items())[1:]))


def tensors(**changes):
    return lambda message: replace(message, tensors={**message.tensors, **changes})


def facts(**changes):
    return lambda message: replace(message, facts={**message.facts, **changes})


def entries(changed):
    """Replace entries of the weights by those that `changed(weights)` returns."""
    return lambda message: replace(message, weights={**message.weights, **changed(message.weights)})


def everything(change):
    """Change every floating-point entry."""
    return entries(lambda weights: {n: change(w) for n, w in weights.items() if w.is_floating_point()})


INVALID = {
    "all NaN": (everything(lambda w: w * NAN), r"is not finite \(first in 'features"),
    "+inf": (weights(lambda w: w + INF), "is not finite"),
    "-inf": (weights(lambda w: w - INF), "is not finite"),
    "one NaN in a buffer": (in_a_buffer(NAN), "is not finite"),
    "one inf in a buffer": (in_a_buffer(INF), "is not finite"),
    "1e30": (everything(lambda w: w + 1e30), r"contains the number 1e\+30 in 'features"),
    "a missing entry": (without_first, r"does not fit the network: .* lacks expected entries \(1\), such as 'features"),
    "an extra entry": (entries(lambda _: {"backdoor": torch.ones(2)}), r"does .* unknown entries \(1\), .* 'backdoor'"),
    "another shape": (weights(lambda w: w.flatten()), r"does not fit the network: 'features.* is \(588,\)"),
    "a shape that broadcasts": (weights(lambda w: w[:1]), r"does not fit the network: 'features.* is \(1, 3, 7, 7\)"),
    "a single number": (weights(lambda w: w.sum()), r"does not fit the network: 'features.* is \(\) torch.float32"),
    "another dtype": (weights(lambda w: w.double()), "does not fit the network: 'features.* torch.float64"),
    "complex numbers": (weights(lambda w: w.to(torch.complex64)), "holds torch.complex64 in 'features"),
    "no examples": (facts(examples=0), "reports 0 training images, but a whole number from 1"),
    "negative examples": (facts(examples=-10), "reports -10 training images"),
    "a trillion examples": (facts(examples=10**12), "reports 1000000000000 training images, .* from 1 to 100,000,000"),
    "examples with a fraction": (facts(examples=10.0), "reports 10.0 training images"),
    "examples that are true": (facts(examples=True), "reports True training images"),
    "a loss that is NaN": (facts(loss=NAN), "reports nan for 'loss', but a finite number"),
    "a loss of words": (facts(loss="low"), "reports 'low' for 'loss'"),
    "no steps": (facts(steps=0), "reports 0 training steps"),
    "a trillion steps": (facts(steps=10**12), "reports 1000000000000 training steps"),
    "an empty message": (lambda message: Message("train"), "does not report examples, loss, steps"),
    "no weights": (lambda message: replace(message, weights={}), "does not fit the network: .* lacks expected entries"),
    "another kind": (lambda message: replace(message, kind="share"), "is of kind 'share', but 'train' was requested"),
    "another round": (facts(round=7), "belongs to round 7"),
    "too many bytes": (lambda m: replace(m, tensors={"x": torch.zeros(1).expand(2**40)}), "has 4,398,.* bytes"),
    "a long text": (facts(note="a" * 10**5), "reports 'aaa.* for 'note', but a finite number"),
    "a method's number in words": (facts(triplets="many"), "reports 'many' for 'triplets', but a finite number"),
    "a tensor that is NaN": (tensors(loss=torch.tensor([NAN])), "is not finite .first in 'loss'"),
    "a control of another shape": (
        tensors(**{"change/features.conv0.weight": torch.zeros(1, 3, 7, 7)}),
        r"holds 'change/features.conv0.weight' as \(1, 3, 7, 7\) float32, but the network's entry is \(4, 3,",
    ),
}


def reversed_change(start):
    """Reverse the change and make it a hundred times as long."""
    return entries(lambda weights: {n: start[n] - 100 * (w - start[n]) for n, w in learned(weights).items()})


FINITE = {
    "reversed": reversed_change,
    "huge": lambda start: everything(lambda w: w + 1e5),
    "zero": lambda start: everything(torch.zeros_like),
}


def all_finite(done):
    return all(torch.isfinite(entry).all() for entry in [*done.state.weights.values(), *done.state.memory.values()])


def honest_spread(method, name):
    _, replies = recorded(method)
    recorded_replies = torch.stack([replies["train"][site].weights[name] for site in SITES if site != BAD]).double()
    return recorded_replies.amin(dim=0), recorded_replies.amax(dim=0)


def named(methods):
    return pytest.mark.parametrize("method", methods, ids=lambda method: type(method).__name__)


@named(METHODS)
@pytest.mark.parametrize("poison", INVALID)
def test_an_invalid_update_is_dropped_and_the_model_is_that_of_the_other_sites(method, poison):
    change, reason = INVALID[poison]
    done, warned = one_round(method, poisoned(change))
    assert all_finite(done) and digest(done.state.to_bytes()) == digest_without_bad_site(method)
    assert done.state.took_part == {site: 1 for site in SITES if site != BAD}
    (sentence,) = warned
    pytest.raises(UserError, one_round, method, poisoned(change), Federation(rounds=1)).match(
        f"^{BAD}: its update of round 1 {reason}.*; "
    )
    assert sentence.startswith(f"{BAD}: its update of round 1 ") and sentence.endswith("; the run continues without it")


@named(METHODS)
@pytest.mark.parametrize("poison", FINITE)
def test_finite_updates_give_a_finite_model_and_a_change_far_above_the_median_is_dropped(method, poison):
    start, _ = recorded(method)
    change = poisoned(FINITE[poison](start.weights))
    assert all_finite(one_round(method, change, ANY_SIZE)[0])
    if poison != "zero":
        done, warned = one_round(method, change)
        assert digest(done.state.to_bytes()) == digest_without_bad_site(method)
        assert any("south: its update of round 1 changes the weights by" in text for text in warned)


@named(METHODS)
def test_honest_updates_are_all_accepted(method):
    plain, warned = one_round(method, settings=ANY_SIZE)
    checked, also = one_round(method, settings=Federation(rounds=1))
    assert not warned and not also and digest(plain.state.to_bytes()) == digest(checked.state.to_bytes())
    assert set(checked.state.took_part) == set(SITES)


@named(ROBUST[:2])
@pytest.mark.parametrize("poison", FINITE)
def test_the_median_and_the_trimmed_mean_lie_between_the_honest_sites(method, poison):
    start, _ = recorded(method)
    done, _ = one_round(method, poisoned(FINITE[poison](start.weights)), ANY_SIZE)
    for name, entry in done.state.weights.items():
        if entry.is_floating_point():
            low, high = honest_spread(method, name)
            assert bool(((entry >= low) & (entry <= high)).all()), name


def distance_ratio(method, weights) -> float:
    """Return how far weights are from the mean of the honest updates, relative to the farthest of these."""
    _, replies = recorded(method)
    honest = [learned(replies["train"][site].weights) for site in SITES if site != BAD]
    centre = {name: torch.stack([one[name].double() for one in honest]).mean(0) for name in honest[0]}
    return change_norm(centre, learned(weights)) / max(change_norm(centre, one) for one in honest)


@pytest.mark.parametrize("poison", FINITE)
def test_the_clipped_change_is_not_longer_than_the_honest_ones(poison):
    method = NormClipping()
    state, replies = recorded(method)
    done, _ = one_round(method, poisoned(FINITE[poison](state.weights)), ANY_SIZE)
    longest = max(change_norm(state.weights, learned(replies["train"][site].weights)) for site in SITES if site != BAD)
    assert change_norm(state.weights, learned(done.state.weights)) <= longest
    assert distance_ratio(method, done.state.weights) <= 2


def test_updates_whose_sum_overflows_are_refused():
    """A quarter of 9e5 is finite; 1e34 times that is beyond float32."""
    method = FedGMA(tau=0.0, step=1e34)
    with pytest.raises(UserError, match="^south: after round 1, .* infinite values, .* changes the weights most"):
        one_round(method, poisoned(everything(lambda w: w + 9e5)), ANY_SIZE)


@named([SCAFFOLD(), FedDGGA(), ELCFS(alpha=0.1, min_patients=1), StableFDG(min_patients=1, stages=(1,))])
def test_shared_statistics_are_checked_too(method):
    """A site whose statistics are rejected before round 1 never trains; before a later round, not in that round."""
    poison = poisoned(lambda m: replace(m, tensors={n: e.double() * NAN for n, e in m.tensors.items()}), "share")
    done, warned = one_round(method, poison)
    assert all_finite(done) and any(text.startswith("south: its share of round 1 is not finite") for text in warned)
    assert {site for site, number in done.state.took_part.items() if number} == set(SITES) - {BAD}
    assert not any(row["site"] == BAD and row["kind"] == "train" for row in done.ledger)
    with pytest.raises(UserError, match="^south: its share of round 1 is not finite"):
        one_round(method, poison, Federation(rounds=1))


def test_facts_of_a_site_replace_no_column_of_the_history_also_not_one_of_another_site():
    """With 1.0 as the round, `--resume` would look for the checkpoint of a round that does not exist."""
    honest, _ = one_round(FedAvg())
    done, warned = one_round(FedAvg(), poisoned(facts(round=1), "validate"))
    assert not warned and type(done.history["round"]) is int and done.history == {**done.history, **honest.history}
    for name in ("train_loss", "validation_score", "validation_site_score", "=1+1"):
        done, warned = one_round(FedAvg(), poisoned(facts(**{name: 9.0}), "validate"))
        assert f"south: its score of round 1 reports '{name}', which was not requested" in warned[0]
        assert done.history.get(name) != 9.0
    _, warned = one_round(FedAvg(), poisoned(facts(validation_site_score=1.0)))
    assert "south: its update of round 1 reports 'validation_site_score', which is not in" in warned[0]
    done, warned = one_round(FedAvg(), poisoned(facts(**{"validation_score/north": 9.0}), "validate"))
    assert "validation_score/south" not in done.history and done.history["validation_score/north"] != 9.0
    assert "reports a number with the name 'validation_score/north'" in warned[0]


def test_the_reason_of_a_failed_reply_stays_on_its_line():
    forged = poisoned(lambda m: failed_reply("late\nnorth: its update of round 1 is not finite"))
    _, warned = one_round(FedAvg(), forged)
    assert "south: its update of round 1 was not received: late north: its" in warned[0] and "\n" not in warned[0]


def test_a_reply_that_lacks_what_the_method_needs_is_dropped():
    """FedDG-GA needs a tensor with the loss; other methods may do without it, so that no check rejects the reply."""
    done, warned = one_round(FedDGGA(), poisoned(lambda m: replace(m, tensors={})))
    assert digest(done.state.to_bytes()) == digest_without_bad_site(FedDGGA())
    why = "cannot be used by the method (KeyError: \"'loss'\")"
    assert f"south: its update of round 1 {why}; the run continues without it" in warned


def test_an_error_in_the_method_is_raised():
    class Broken(FedAvg):
        def aggregate(self, state, updates):
            raise KeyError("mine")

    start, replies = recorded(FedAvg())
    with pytest.raises(KeyError, match="mine"):
        list(federate(Broken(), Recorded(replies), start, DROP, 0))


def test_a_rejected_update_is_in_the_ledger():
    done, _ = one_round(FedAvg(), poisoned(lambda m: replace(m, weights={**m.weights, "backdoor": torch.ones(2)})))
    up = {row["site"]: row for row in done.ledger if (row["direction"], row["content"]) == ("up", "weight")}
    other = up["north"]
    assert (up[BAD]["kind"], up[BAD]["n"], up[BAD]["bytes"]) == ("train", other["n"] + 1, other["bytes"] + 8)
    assert "train_loss/south" not in done.history
