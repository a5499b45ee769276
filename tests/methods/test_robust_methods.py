"""The median, the trimmed mean and norm clipping as methods; tests/functional tests their mathematics."""

import pytest
import torch
from toy_runs import rounds_of, shared_run, updates_of

from medfed.core.errors import UserError
from medfed.federation.message import State, digest
from medfed.methods.coordinate_median import CoordinateMedian
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.methods.norm_clipping import NormClipping
from medfed.methods.stack import Stack
from medfed.methods.trimmed_mean import TrimmedMean

START = State(0, {"w": torch.zeros(1)}, parameters=frozenset({"w"}))
METHODS = [CoordinateMedian(), TrimmedMean(0.3), NormClipping()]


def last(toy, method, sites=None, rounds=2):
    """Return the state after some rounds; a run of all sites is shared with other tests."""
    if sites:
        return rounds_of(toy, method, rounds, toy.engine(method, sites))[-1].state
    return shared_run(toy, method, rounds).rounds[-1].state


def updates(*values, examples=None):
    counts = examples or [1] * len(values)
    return updates_of(**{f"s{i}": one for i, one in enumerate(zip(values, counts, strict=True))})


@pytest.mark.parametrize("method", [*METHODS, TrimmedMean(0.0)], ids=repr)
def test_a_stack_uses_its_rule(toy, method):
    own = Stack((ELCFS(alpha=0.1, views=1, min_patients=1), method))
    assert own.aggregate(START, updates(1.0, 2.0, 9.0)) == method.aggregate(START, updates(1.0, 2.0, 9.0))
    assert all(torch.isfinite(entry).all() for entry in last(toy, own, rounds=1).weights.values())


def test_a_single_site_is_not_clipped(any_toy):
    one, other = (last(any_toy, method, ("north",)) for method in (NormClipping(), FedAvg()))
    assert digest(one.to_bytes()) == digest(other.to_bytes())


def test_a_reported_number_of_images_has_no_influence():
    state, claimed = START, [1, 1, 10**8]
    for method, expected in (
        (CoordinateMedian(), 2),
        (TrimmedMean(0.3), 2),
        (NormClipping(bound=1e9, site_weights="uniform"), 4),
    ):
        for examples in (None, claimed):
            assert method.aggregate(state, updates(1.0, 2.0, 9.0, examples=examples))["w"] == expected
    assert NormClipping(bound=1e9).aggregate(state, updates(1.0, 2.0, 9.0, examples=claimed))["w"] > 8.9


@pytest.mark.parametrize(("trim", "n", "cut"), [(0.2, 3, 1), (0.2, 5, 1), (0.2, 6, 2), (0.25, 4, 1), (0.1, 30, 3)])
def test_the_number_of_cut_sites_is_rounded_up(trim, n, cut):
    """All values are 0 except as many ones as are cut at one end; one more would change the result."""
    state = START
    for ones, gone in ((cut, True), (cut + 1, False)):
        actual = TrimmedMean(trim).aggregate(state, updates(*[1.0] * ones, *[0.0] * (n - ones)))
        assert (actual["w"].item() == 0) is gone


@pytest.mark.parametrize("n", [1, 2])
def test_too_few_sites_to_trim_are_rejected(n):
    with pytest.raises(UserError, match=rf"method.trim: .* cuts 1 of {n} sites at each end \(s0.*let more sites take"):
        TrimmedMean().aggregate(State(0, {}), updates(*range(n)))


def test_with_local_batch_norm_the_other_entries_are_aggregated(toy_of_classes):
    for method in METHODS:
        engine = toy_of_classes.engine(method, local_batch_norm=True)
        start = toy_of_classes.start(method)
        (done,) = rounds_of(toy_of_classes, method, 1, engine, start)
        local = engine.local_sites[0].local_keys
        assert local and all(torch.equal(done.state.weights[name], start.weights[name]) for name in local)
