"""What every method must hold, for whatever file is found in medfed/methods."""

import warnings
from dataclasses import replace

import pytest
import torch
from conftest import ToyClassification

from medfed.core.batch import Batch
from medfed.core.registry import known_names, resolve
from medfed.deployment.dry_run import dry_run
from medfed.federation.message import State, digest
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation

pytestmark = pytest.mark.filterwarnings("ignore:.*(along the masks|method.k is|shares no|FISC)")
SETTINGS = Federation(rounds=2)


# What small images, or few of them, ask for, and what a task has no room for.
TOY = {"elcfs": {"alpha": 0.1}, "ccst": {"min_patients": 1}, "fisc": {"min_patients": 1},
       "stable_fdg": {"min_patients": 1, "stages": (1, 2)}, "trimmed_mean": {"trim": 0.0}}  # fmt: skip
TOY_MASKS = {"fedsr": {"l2": 0.0, "cmi": 0.0, "stochastic": False}, "stable_fdg": {"attention": False}}


def build(name: str, stacked: bool, masks: bool):
    method = resolve("methods", name)(**TOY.get(name, {}), **(TOY_MASKS.get(name, {}) if masks else {}))
    return resolve("methods", "stack")((method,)) if stacked else method


@pytest.fixture(params=[
    pytest.param((name, stacked), id=f"stack-{name}" if stacked else name)
    for name in known_names("methods") if name != "stack"  # which has no default, and is tested with all others in it
    for stacked in (False, True)
])  # fmt: skip
def named(request):
    return request.param


@pytest.fixture
def method(named):
    return build(*named, masks=True)


@pytest.fixture
def any_method(named, any_toy):
    return build(*named, masks=bool(any_toy.architecture.decoder_levels))


def last_state(toy, method, sites=("north", "south", "west"), state=None, engine=None) -> State:
    engine = engine or toy.engine(method, sites)
    *_, last = federate(method, engine, state or toy.start(method), SETTINGS, 0)
    return last.state


def test_it_is_built_from_its_defaults_and_from_each_preset(method):
    for preset in method.presets.values():
        replace(method, **preset)


def test_the_order_of_the_sites_does_not_matter(any_toy, any_method):
    one, other = last_state(any_toy, any_method), last_state(any_toy, any_method, ("west", "north", "south"))
    assert digest(one.to_bytes()) == digest(other.to_bytes())


def test_it_survives_a_restart_from_bytes(any_toy, any_method):
    toy = any_toy
    engine = toy.engine(any_method)
    rounds = list(federate(any_method, engine, toy.start(any_method), SETTINGS, 0))
    engine = toy.engine(any_method)
    first = next(federate(any_method, engine, toy.start(any_method), SETTINGS, 0))
    again = last_state(toy, any_method, state=State.from_bytes(first.state.to_bytes()), engine=engine)
    assert digest(again.to_bytes()) == digest(rounds[-1].state.to_bytes())


def test_wrapping_the_network_renames_nothing(any_toy, any_method):
    toy = any_toy
    plain = toy.architecture.build(toy.channels, toy.n_logits)
    assert set(plain.state_dict()) <= set(toy.network(any_method).state_dict())


def test_messages_hold_only_tensors_and_plain_facts(any_toy, any_method):
    toy = any_toy
    done = next(federate(any_method, toy.engine(any_method), toy.start(any_method), SETTINGS, 0))
    assert {row["dtype"] for row in done.ledger} <= {"float32", "float16", "int64", "uint8", "fact"}


def test_empty_masks_stay_finite(toy, method):
    engine = toy.engine(method)
    for site in engine.local_sites:
        site.training.labels.zero_()
    weights = last_state(toy, method, engine=engine).weights
    assert all(torch.isfinite(w).all() for w in weights.values())


def test_a_single_site_and_a_site_of_one_image_train(toy, method):
    engine = toy.engine(method, ("north",))
    site = engine.local_sites[0]
    site.training = type(site.training)(*(part[:1] for part in vars(site.training).values()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        weights = last_state(toy, method, engine=engine).weights
    assert all(torch.isfinite(w).all() for w in weights.values())


def test_it_holds_no_state(toy, method):
    before = repr(method)
    last_state(toy, method)
    assert repr(method) == before
    with pytest.raises(AttributeError):
        method.anything = 1


def test_batches_are_not_changed_in_place(toy, method):
    engine = toy.engine(method)
    site = engine.local_sites[0]
    kept = Batch(site.training.images.clone(), site.training.labels.clone())
    last_state(toy, method, engine=engine)
    assert torch.equal(site.training.images, kept.image) and torch.equal(site.training.labels, kept.label)


@pytest.mark.parametrize("method", [
    resolve("methods", "elcfs")(exchange=False, alpha=0.1),
    resolve("methods", "harmofl")(normalise=False),
    resolve("methods", "stable_fdg")(style=False),
], ids=["elcfs", "harmofl", "stable_fdg"])  # fmt: skip
def test_a_method_that_is_to_do_without_what_sites_share_does_not_ask_for_it(method):
    """Neither do the weights travel for it, nor does anything of its own beside what another of a stack asks for."""
    toy = ToyClassification()
    stacked = resolve("methods", "stack")((method, resolve("methods", "ccst")(min_patients=1)))
    for one, asked in ((method, set()), (stacked, {"1"})):
        start, engine = toy.start(one), toy.engine(one)
        ledger = [row for done in federate(one, engine, start, SETTINGS, 0) for row in done.ledger]
        rows = [row for row in ledger if row["kind"] == "share"]
        assert {row["name"].partition("/")[0] for row in rows if row["direction"] == "up"} == asked
        assert {row["round"] for row in rows} == ({1} if asked else set())
        told = [row["name"] for row in dry_run(engine.local_sites[0], start, 0) if row["kind"] == "share"]
        assert {name.partition("/")[0] for name in told} == asked, "a hospital is shown what will be asked for"
