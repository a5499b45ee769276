"""One hospital of four sends something bad; whatever the method, the model stays finite and the hospital is named."""

import warnings
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from conftest import ToyClassification

from medfed.core.errors import UserError
from medfed.federation.message import Message, digest
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.functional.aggregation import change_norm
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
NAN, INF = float("nan"), float("inf")


@dataclass
class Recorded:
    """Sites that say again what they said once, where the poison leaves it: `poison(kind, answers)` changes answers."""

    answers: dict[str, dict[str, Message]]
    poison: object = None

    def sites(self):
        return list(SITES)

    def exchange(self, kind, messages):
        found = {site: self.answers[kind][site] for site in messages}
        return self.poison(kind, found) if self.poison else found


@cache
def parameters() -> frozenset[str]:
    return ToyClassification().start(FedAvg()).parameters


def learned(weights):
    """The entries that are parameters, no buffers."""
    return {name: entry for name, entry in weights.items() if name in parameters()}


@cache
def recorded(method):
    """The start, and what the toy sites answer in round 1: the same for all tests of a method."""
    toy, answers = ToyClassification(), {}
    engine, start = toy.engine(method, SITES), toy.start(method)
    exchange = engine.exchange

    def keep(kind, messages):
        answers[kind] = exchange(kind, messages)
        return answers[kind]

    engine.exchange = keep
    list(federate(method, engine, start, Federation(rounds=1), 0))
    return start, answers


@cache
def of_the_others(method) -> str:
    """The state that the bad site's silence leaves."""
    return digest(one_round(method, gone)[0].state.to_bytes())


def one_round(method, poison=None, settings=DROP):
    """The round's end, and what was warned of."""
    start, answers = recorded(method)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        (done,) = federate(method, Recorded(answers, poison), start, settings, 0)
    return done, [str(one.message) for one in said if one.category is UserWarning]


def poisoned(change, kind="train"):
    """`change(message)` applied to the bad site's answers of a kind."""
    def poison(of, answers):
        return {**answers, BAD: change(answers[BAD])} if of == kind else answers

    return poison


def gone(of, answers):
    """The bad site gave no update."""
    return {site: answer for site, answer in answers.items() if of != "train" or site != BAD}


def weights(change, name=None):
    def changed(message):
        first = name or next(iter(learned(message.weights)))
        return replace(message, weights={**message.weights, first: change(message.weights[first])})

    return changed


def in_a_buffer(value):
    """In one element of a running variance; in FedBN's updates, which hold none, of the last weight."""
    def changed(message):
        name = next((n for n in message.weights if n.endswith("running_var")), list(message.weights)[-1])
        entry = message.weights[name].clone()
        entry.view(-1)[-1] = value
        return replace(message, weights={**message.weights, name: entry})

    return changed


def without_first(message):
    return replace(message, weights=dict(list(message.weights.items())[1:]))


def facts(**changes):
    return lambda message: replace(message, facts={**message.facts, **changes})


def everything(change):
    """Every learned entry changed, statistics too."""
    return lambda message: replace(message, weights={
        n: change(w) if w.is_floating_point() else w for n, w in message.weights.items()})  # fmt: skip


INVALID = {
    "all NaN": (everything(lambda w: w * NAN), r"is not finite \(first in 'features"),
    "+inf": (weights(lambda w: w + INF), "is not finite"),
    "-inf": (weights(lambda w: w - INF), "is not finite"),
    "one NaN in a buffer": (in_a_buffer(NAN), "is not finite"),
    "one inf in a buffer": (in_a_buffer(INF), "is not finite"),
    "1e30": (everything(lambda w: w + 1e30), r"is too large to compute with \(1e\+30 in 'features"),
    "a missing entry": (without_first, "does not fit the network: 1 entries are missing, the first is 'features"),
    "an extra entry": (
        lambda m: replace(m, weights={**m.weights, "backdoor": torch.ones(2)}),
        "does not fit the network: 1 entries are unknown, the first is 'backdoor'",
    ),
    "another shape": (weights(lambda w: w.flatten()), r"does not fit the network: 'features.* is \(1176,\)"),
    "a shape that broadcasts": (
        weights(lambda w: w[:1]), r"does not fit the network: 'features.* is \(1, 3, 7, 7\)"
    ),
    "a single number": (weights(lambda w: w.sum()), r"does not fit the network: 'features.* is \(\) torch.float32"),
    "another dtype": (weights(lambda w: w.double()), "does not fit the network: 'features.* torch.float64"),
    "complex numbers": (weights(lambda w: w.to(torch.complex64)), "holds torch.complex64 in 'features"),
    "no examples": (facts(examples=0), "counts 0 examples; expected at least 1"),
    "negative examples": (facts(examples=-10), "counts -10 examples"),
    "a trillion examples": (facts(examples=10**12), "counts 1000000000000 examples; .*at most 100,000,000"),
    "examples with a fraction": (facts(examples=10.0), "counts 10.0 examples"),
    "examples that are true": (facts(examples=True), "counts True examples"),
    "a loss that is NaN": (facts(loss=NAN), "has the loss nan"),
    "a loss of words": (facts(loss="low"), "has the loss 'low'"),
    "no steps": (facts(steps=0), "counts 0 steps"),
    "a trillion steps": (facts(steps=10**12), "counts 1000000000000 steps"),
    "an empty message": (lambda message: Message("train"), "counts None examples"),
    "no weights": (lambda message: replace(message, weights={}), "does not fit the network: .* entries are missing"),
    "another kind": (lambda message: replace(message, kind="share"), "is of kind 'share', where 'train' was asked for"),
    "another round": (facts(round=7), "says that it is of round 7"),
    "too many bytes": (lambda m: replace(m, tensors={"x": torch.zeros(1).expand(2**40)}), "has 4,398,.* bytes"),
    "too many facts": (facts(note="a" * 10**5), "has facts of 100,.* characters"),
    "a tensor that is NaN": (
        lambda m: replace(m, tensors={**m.tensors, "loss": torch.tensor([NAN])}), "is not finite .first in 'loss'"
    ),
    "an odd control": (
        lambda m: replace(m, tensors={"change/features.conv0.weight": torch.zeros(1, 3, 7, 7)}),
        r"holds 'change/features.conv0.weight' as \(1, 3, 7, 7\) float32, but that entry of the network is \(8, 3,",
    ),
}


def away(start):
    """The change turned round and a hundred times as long."""
    return lambda message: replace(message, weights={
        n: start[n] - 100 * (w - start[n]) if w.is_floating_point() else w
        for n, w in message.weights.items()})  # fmt: skip


FINITE = {"turned round": away, "huge": lambda start: everything(lambda w: w + 1e15),
          "zero": lambda start: everything(torch.zeros_like)}  # fmt: skip


def named(methods):
    return pytest.mark.parametrize("method", methods, ids=lambda method: type(method).__name__)


def all_finite(done):
    return all(torch.isfinite(entry).all() for entry in [*done.state.weights.values(), *done.state.memory.values()])


@named(METHODS)
@pytest.mark.parametrize("poison", INVALID)
def test_what_is_invalid_is_dropped_by_name_and_leaves_the_model_of_the_others(method, poison):
    change, reason = INVALID[poison]
    done, said = one_round(method, poisoned(change))
    assert all_finite(done) and digest(done.state.to_bytes()) == of_the_others(method)
    assert done.state.took_part == {site: 1 for site in SITES if site != BAD}
    (sentence,) = [text for text in said if text.startswith(BAD)]
    pytest.raises(UserError, one_round, method, poisoned(change), Federation(rounds=1)).match(
        f"^{BAD}: its update of round 1 {reason}.*; ")
    assert sentence.startswith(f"{BAD}: its update of round 1 ") and sentence.endswith(", and is left out")


@named(METHODS)
@pytest.mark.parametrize("poison", FINITE)
def test_what_is_finite_never_makes_a_model_that_is_not(method, poison):
    start, _ = recorded(method)
    done, _ = one_round(method, poisoned(FINITE[poison](start.weights)))
    assert all_finite(done)


@named(METHODS)
@pytest.mark.parametrize("poison", ["turned round", "huge"])
def test_a_change_that_is_far_from_the_others_is_dropped_where_that_was_asked_for(method, poison):
    start, _ = recorded(method)
    change = poisoned(FINITE[poison](start.weights))
    done, said = one_round(method, change, replace(DROP, largest_change=10.0))
    assert digest(done.state.to_bytes()) == of_the_others(method)
    assert any("south: its update of round 1 changes the weights by" in text for text in said)


@named(METHODS)
def test_honest_updates_are_all_kept(method):
    plain, said = one_round(method, settings=Federation(rounds=1))
    kept, also = one_round(method, settings=replace(DROP, largest_change=10.0))
    assert not said and not also and digest(plain.state.to_bytes()) == digest(kept.state.to_bytes())
    assert set(kept.state.took_part) == set(SITES)


def honest_spread(method, name):
    _, answers = recorded(method)
    found = torch.stack([answers["train"][site].weights[name] for site in SITES if site != BAD]).double()
    return found.amin(dim=0), found.amax(dim=0)


@named(ROBUST[:2])
@pytest.mark.parametrize("poison", FINITE)
def test_the_median_and_the_trimmed_mean_stay_between_the_honest_sites(method, poison):
    start, _ = recorded(method)
    done, _ = one_round(method, poisoned(FINITE[poison](start.weights)))
    for name, entry in done.state.weights.items():
        if entry.is_floating_point():
            low, high = honest_spread(method, name)
            assert bool(((entry >= low) & (entry <= high)).all()), name


@pytest.mark.parametrize("poison", FINITE)
def test_clipped_changes_move_no_further_than_the_honest_ones(poison):
    method = NormClipping()
    state, answers = recorded(method)
    start = state.weights
    done, _ = one_round(method, poisoned(FINITE[poison](start)))
    longest = max(change_norm(start, learned(answers["train"][site].weights)) for site in SITES if site != BAD)
    assert change_norm(start, learned(done.state.weights)) <= longest


@pytest.mark.parametrize("poison", ["turned round", "huge"])
def test_fedavg_does_not_stay_there(poison):
    """The control of the two tests above."""
    start, _ = recorded(FedAvg())
    done, _ = one_round(FedAvg(), poisoned(FINITE[poison](start.weights)))
    name = "features.conv0.weight"
    low, high = honest_spread(FedAvg(), name)
    assert not bool(((done.state.weights[name] >= low) & (done.state.weights[name] <= high)).all())


def test_updates_that_are_finite_one_by_one_and_not_together_are_refused():
    """A quarter of 9e17 is finite; 1e22 times that is beyond float32."""
    method = FedGMA(tau=0.0, step=1e22)
    with pytest.raises(UserError, match="^south: its update of round 1 changes most, and .* is not finite"):
        one_round(method, poisoned(everything(lambda w: w + 9e17)))


@named([SCAFFOLD(), FedDGGA(), ELCFS(alpha=0.1, min_patients=1), StableFDG(min_patients=1, stages=(1, 2))])
def test_what_is_shared_is_checked_too(method):
    """A site that shares nothing of use before round 1 is out of the run; before every round, out of that round."""
    spoil = poisoned(lambda m: replace(m, tensors={n: e.double() * NAN for n, e in m.tensors.items()}), "share")
    done, said = one_round(method, spoil)
    assert all_finite(done) and any(text.startswith("south: its share of round 1 is not finite") for text in said)
    assert {site for site, number in done.state.took_part.items() if number} == set(SITES) - {BAD}
    assert not any(row["site"] == BAD and row["kind"] == "train" for row in done.ledger)
    with pytest.raises(UserError, match="^south: its share of round 1 is not finite"):
        one_round(method, spoil, Federation(rounds=1))


@pytest.mark.parametrize("score", [NAN, INF, "good", None, True])
def test_a_score_that_is_no_number_is_dropped_by_name(score):
    spoil = poisoned(facts(score=score), "validate")
    done, said = one_round(FedAvg(), spoil)
    assert "validation_score/south" not in done.history and "validation_score/north" in done.history
    assert [text for text in said if text.startswith("south: its score of round 1 says that 'score' is ")]
    with pytest.raises(UserError, match="^south: its score of round 1 says that 'score' is "):
        one_round(FedAvg(), spoil, Federation(rounds=1))


def test_what_passes_and_lacks_what_the_method_needs_is_dropped_by_name():
    """FedDG-GA needs a loss; that a tensor is not there could be right for another method."""
    spoil = poisoned(lambda m: replace(m, tensors={}))
    done, said = one_round(FedDGGA(), spoil)
    assert digest(done.state.to_bytes()) == of_the_others(FedDGGA())
    why = "is nothing that the method can use (KeyError: \"'loss'\")"
    assert f"south: its update of round 1 {why}, and is left out" in said


def test_an_error_of_the_method_itself_is_no_sites_fault():
    class Broken(FedAvg):
        def aggregate(self, state, updates):
            raise KeyError("mine")

    start, answers = recorded(FedAvg())
    with pytest.raises(KeyError, match="mine"):
        list(federate(Broken(), Recorded(answers), start, DROP, 0))


def test_the_update_that_was_left_out_is_in_the_ledger_as_it_came():
    done, _ = one_round(FedAvg(), poisoned(lambda m: replace(m, weights={**m.weights, "backdoor": torch.ones(2)})))
    rows = [row for row in done.ledger if row["site"] == BAD and row["direction"] == "up" and row["name"] == "backdoor"]
    assert [(row["kind"], row["shape"], row["bytes"]) for row in rows] == [("train", "2", 8)]
    assert "train_loss/south" not in done.history
