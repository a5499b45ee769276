import copy

import pytest
import torch

from medfed.core.errors import UserError
from medfed.functional.feature_style import add_style_noise, mix_styles
from medfed.functional.sampling import draw_mixing_partners
from medfed.networks.densenet import DenseNetwork
from medfed.networks.parts.style_layers import DSU, EFDMix, MixStyle, insert_after_stages, mix_histograms
from medfed.networks.unet import UNet
from medfed.testing.small_unet import SmallUNet

LAYERS = [MixStyle, EFDMix, DSU]
every = pytest.mark.parametrize("layer", LAYERS)


def maps(n: int = 4) -> torch.Tensor:
    noise = torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return noise * torch.arange(1, n + 1)[:, None, None, None]


def seeded(layer, features):
    torch.manual_seed(0)
    return layer(features)


@every
def test_in_evaluation_with_probability_zero_or_one_image_the_input_is_returned_and_nothing_is_drawn(layer):
    features, before = maps(), torch.get_rng_state()
    assert layer(1.0).eval()(features) is features
    assert layer(0.0).train()(features) is features
    assert layer(1.0).train()(maps(1)).equal(maps(1))
    assert torch.equal(torch.get_rng_state(), before)


@every
def test_the_layer_acts_with_its_probability(layer):
    """400 draws at 0.3: 120 +- 4 * 9.2."""
    torch.manual_seed(0)
    one, features = layer(0.3).train(), maps(2)
    assert abs(sum(one(features) is not features for _ in range(400)) - 120) < 37


def test_each_layer_equals_its_function():
    features = maps()

    def draws(function):
        torch.manual_seed(0)
        torch.rand(())
        return function(torch.default_generator)

    expected = [
        draws(lambda rng: mix_styles(features, *draw_mixing_partners(4, 0.1, rng))),
        draws(lambda rng: mix_histograms(features, *draw_mixing_partners(4, 0.1, rng))),
        draws(lambda rng: add_style_noise(features, rng)),
    ]
    for layer, result in zip(LAYERS, expected, strict=True):
        assert torch.equal(seeded(layer(1.0).train(), features), result), layer


def wrapped(layer, settings, stages=(1, 2)):
    torch.manual_seed(0)
    return insert_after_stages(settings.build(1, 2), settings.encoder_stages, stages, layer)


NETWORKS = [DenseNetwork(init_features=8, growth_rate=4, blocks=(2, 2)), SmallUNet(), UNet(features=(4, 4, 4, 8, 8, 4))]
each_network = pytest.mark.parametrize("settings", NETWORKS, ids=["densenet", "small", "unet"])


@every
@each_network
def test_a_network_with_a_style_layer_has_the_same_entries_and_evaluation_outputs(layer, settings):
    torch.manual_seed(0)
    plain = settings.build(1, 2).eval()
    network = wrapped(lambda: layer(1.0), settings)
    assert list(network.state_dict()) == list(plain.state_dict())
    image = torch.rand(3, 1, 32, 32)
    assert torch.equal(network.eval()(image), plain(image))
    assert not torch.equal(network.train()(image), plain.train()(image))


@every
@each_network
def test_a_copy_of_the_network_predicts_the_same_with_its_own_layers(layer, settings):
    network = wrapped(lambda: layer(1.0), settings).eval()
    copied, image = copy.deepcopy(network), torch.rand(2, 1, 32, 32)
    assert torch.equal(copied(image), network(image))
    name = f"{layer.__name__.lower()}_1"
    getattr(copied.train(), name).probability = getattr(copied, f"{layer.__name__.lower()}_2").probability = 0.0
    image = torch.rand(3, 1, 32, 32)
    assert torch.equal(copied(image), copied(image)), "the copy uses its own layers, which are in evaluation mode"
    assert not torch.equal(network.train()(image), network(image)), "and the original still uses its own layers"


@every
def test_gradients_reach_all_parameters(layer):
    network = wrapped(lambda: layer(1.0), NETWORKS[1]).train()
    network(torch.rand(3, 1, 32, 32)).square().mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters())
    assert network.conv_0.conv.weight.grad.abs().sum() > 0


def test_a_missing_stage_and_a_stage_listed_twice_are_rejected():
    with pytest.raises(UserError, match="method.stages: .* stages 1 to 2; remove all other numbers"):
        wrapped(DSU, NETWORKS[0], (1, 3))
    with pytest.raises(UserError, match="MixStyle is inserted after stage 1 twice"):
        insert_after_stages(wrapped(MixStyle, NETWORKS[0]), NETWORKS[0].encoder_stages, (1,), MixStyle)
