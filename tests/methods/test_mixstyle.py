"""MixStyle, EFDMix and DSU: a layer after each chosen stage changes the style of the features."""

from functools import partial

import pytest

from medfed.core.errors import UserError
from medfed.methods.dsu import DSU
from medfed.methods.efdmix import EFDMix
from medfed.methods.fedavg import FedAvg
from medfed.methods.mixstyle import MixStyle
from medfed.methods.stable_fdg import StableFDG
from medfed.networks.parts import style_layers
from medfed.outputs.bundle.write import select_inference_weights

each = pytest.mark.parametrize("kind", [MixStyle, EFDMix, DSU])


@each
def test_its_layers_follow_the_chosen_stages_with_its_settings(any_toy, kind):
    strength = {"factor" if kind is DSU else "concentration": 0.7}
    network = any_toy.network(kind(stages=(2,), probability=0.25, **strength))
    cls = getattr(style_layers, kind.__name__)
    actual = {name: part for name, part in network.named_modules() if isinstance(part, cls)}
    layer = actual.pop(f"{kind.__name__.lower()}_2")
    assert not actual and {"probability": 0.25, **strength}.items() <= vars(layer).items()
    hooks = network.get_submodule(any_toy.architecture.encoder_stages[1])._forward_hooks.values()
    assert [hook.args[0] for hook in hooks] == [layer]


@each
def test_a_bundle_contains_the_plain_network(any_toy, kind):
    method = kind(probability=1.0)
    weights = any_toy.start(method).weights
    exported, wrap = select_inference_weights(method, any_toy.architecture, any_toy.task, weights)
    assert wrap is None and exported.keys() == any_toy.start(FedAvg()).weights.keys()


@pytest.mark.parametrize("kind", [MixStyle, EFDMix, DSU, partial(StableFDG, attention=False)])
def test_a_stage_that_the_network_lacks_is_rejected(toy, kind):
    with pytest.raises(UserError, match="method.stages: .* stages 1 to 3"):
        toy.network(kind(stages=(1, 6)))
