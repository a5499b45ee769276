"""Combinations of methods that published papers use, and combinations that are not possible."""

import pytest
import torch
from toy_runs import rounds_of, shared_bits

from medfed.core.errors import UserError
from medfed.core.registry import resolve
from medfed.federation.message import Message, digest
from medfed.federation.settings import Training
from medfed.functional.fourier import unpack_window
from medfed.testing.toy import ToyClassification

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
FEW = {"min_patients": 1}
# Each image gets one style, without the codec, which is slower.
MOMENTS = {"transfer": "moments", "k": 1, **FEW}
RUN = {
    "ccst+jigen": [("ccst", MOMENTS), ("jigen", {})],
    "ccst+rsc": [("ccst", MOMENTS), ("rsc", {})],
    "ccst+mixstyle": [("ccst", MOMENTS), ("mixstyle", {"stages": (1,)})],
    "ccst+fedgma": [("ccst", MOMENTS), ("fedgma", {})],
    "ccst+trimmed_mean": [("ccst", MOMENTS), ("trimmed_mean", {"trim": 0.3})],
    "feddg_ga+fedprox": [("feddg_ga", {}), ("fedprox", {})],
    "fedgma+jigen": [("fedgma", {}), ("jigen", {})],
    "fedgma+elcfs": [("fedgma", {}), ("elcfs", {"alpha": 0.1})],
    "mixstyle+fedprox+feddg_ga": [("mixstyle", {"stages": (1,)}), ("fedprox", {}), ("feddg_ga", {})],
}
# In each of these, no method hides the effect of the other one.
STYLES, VIEWS, MIXING = (
    ("ccst", {**MOMENTS, "k": 2}),
    ("fisc", {"transfer": "moments", "margin": 3.0, **FEW}),
    {"probability": 1.0},
)
AMPLITUDES = ("elcfs", {"alpha": 0.1, "views": 1, **FEW})
WITH_EFFECT = {
    "fisc+bigaug": [VIEWS, ("bigaug", {})],
    "fisc+ccst": [VIEWS, STYLES],
    "ccst+fisc": [STYLES, VIEWS],
    "ccst+mixstyle": [STYLES, ("mixstyle", MIXING)],
    "ccst+efdmix": [STYLES, ("efdmix", MIXING)],
    "ccst+dsu": [STYLES, ("dsu", MIXING)],
    "ccst+elcfs": [STYLES, AMPLITUDES],
    "gin+elcfs": [("gin", {}), AMPLITUDES],
    "elcfs+epi_fcr": [AMPLITUDES, ("epi_fcr", {})],
    "rsc+mixstyle": [("rsc", {}), ("mixstyle", MIXING)],
}


def stack(parts):
    return resolve("methods", "stack")(tuple(resolve("methods", name)(**settings) for name, settings in parts))


@pytest.mark.parametrize("parts", RUN.values(), ids=RUN.keys())
def test_combinations_of_published_papers_run(any_toy, parts):
    method, any_toy.settings = stack(parts), Training(batch_size=6)  # one step per round
    *_, last = rounds_of(any_toy, method, 2)
    assert all(torch.isfinite(entry).all() for entry in last.state.weights.values())


@pytest.mark.parametrize("parts", WITH_EFFECT.values(), ids=WITH_EFFECT.keys())
def test_each_method_of_a_stack_has_an_effect(any_toy, parts):
    both = shared_bits(any_toy, stack(parts))
    assert both not in [shared_bits(any_toy, stack([part])) for part in parts]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["fedprox first", "fedsr first"])
def test_methods_that_fill_the_network_come_first_in_any_order(order):
    """FedProx uses the weights at the start of the round; FedSR's r and C belong neither to it nor to other sites."""
    toy = ToyClassification()
    parts = [("fedprox", {"mu": 1.0}), ("fedsr", {})]
    method = stack([parts[i] for i in order])
    request = Message("train", toy.start(method).weights, {}, {"round": 1})
    separate, after_another = toy.engine(method).local_sites, toy.engine(method).local_sites
    after_another[0].reply(request)
    assert digest(separate[1].reply(request).to_bytes()) == digest(after_another[1].reply(request).to_bytes())


@pytest.mark.parametrize("aggregation", [("fednova", {}), ("fedgma", {"step": 2.0})], ids=["fednova", "fedgma"])
def test_the_common_amplitudes_are_not_treated_as_trained_weights(toy, aggregation):
    method = stack([("harmofl", FEW), aggregation])
    engine = toy.engine(method)
    engine.local_sites[0].training = toy.samples("north", 20)
    (done,) = rounds_of(toy, method, 1, engine)
    window = next(entry for name, entry in done.state.weights.items() if name.endswith("window"))
    sent = unpack_window(done.state.memory["0/amplitude"])
    assert torch.allclose(window, sent, atol=1e-6)


def test_epi_fcr_is_rejected_if_batch_norm_stays_at_the_sites():
    toy, method = ToyClassification(), resolve("methods", "epi_fcr")(**FEW)
    with pytest.raises(UserError, match="keeps BatchNorm at the sites"):
        rounds_of(toy, method, 1, toy.engine(method, local_batch_norm=True))
