"""Recorded replies of four toy sites, of which one sends a bad update: every kind, for every method."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cache

import torch

from medfed.federation.message import Message, digest
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.methods.coordinate_median import CoordinateMedian
from medfed.methods.fedavg import FedAvg
from medfed.methods.fedbn import FedBN
from medfed.methods.feddg_ga import FedDGGA
from medfed.methods.fedgma import FedGMA
from medfed.methods.fednova import FedNova
from medfed.methods.norm_clipping import NormClipping
from medfed.methods.scaffold import SCAFFOLD
from medfed.methods.trimmed_mean import TrimmedMean
from medfed.networks.densenet import DenseNetwork
from medfed.testing.toy import ToyClassification

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


def toy() -> ToyClassification:
    """Return a federation with a network of few entries, because each test looks at every entry several times."""
    return ToyClassification(DenseNetwork(4, 2, (1,)), image_side=16, n_images=4)


@cache
def parameters() -> frozenset[str]:
    return toy().start(FedAvg()).parameters


def learned(weights):
    """Return the entries that are parameters, without the buffers."""
    return {name: entry for name, entry in weights.items() if name in parameters()}


@cache
def recorded(method):
    """Return the start state and the replies of the toy sites in round 1, for all tests of a method."""
    replies = {}
    engine, start = toy().engine(method, SITES), toy().start(method)
    exchange = engine.exchange

    def record(kind, messages):
        replies[kind] = exchange(kind, messages)
        return replies[kind]

    engine.exchange = record
    list(federate(method, engine, start, Federation(rounds=1), 0))
    return start, replies


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


def weights(change, name=None):
    def changed(all_weights):
        first = name or next(iter(learned(all_weights)))
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
    "a loss that is NaN": (facts(loss=NAN), "reports the loss nan"),
    "a loss of words": (facts(loss="low"), "reports the loss 'low'"),
    "no steps": (facts(steps=0), "reports 0 steps"),
    "a trillion steps": (facts(steps=10**12), "reports 1000000000000 steps"),
    "an empty message": (lambda message: Message("train"), "reports None training images"),
    "no weights": (lambda message: replace(message, weights={}), "does not fit the network: .* lacks expected entries"),
    "another kind": (lambda message: replace(message, kind="share"), "is of kind 'share', but 'train' was requested"),
    "another round": (facts(round=7), "belongs to round 7"),
    "too many bytes": (lambda m: replace(m, tensors={"x": torch.zeros(1).expand(2**40)}), "has 4,398,.* bytes"),
    "too many facts": (facts(note="a" * 10**5), r"has values that are not tensors \(facts\) of 100,.* characters"),
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
