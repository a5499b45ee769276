"""Tent: only BatchNorm's weights change, with one step per batch, and predictions come from before the step."""

import copy
import math

import pytest
import torch
from torch import nn

from medfed.core.errors import UserError
from medfed.networks.densenet import DenseNetwork
from medfed.networks.parts.tent import Tent
from medfed.networks.unet import UNet


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(6, 3, 10, 10, generator=torch.Generator().manual_seed(1))


def test_only_batch_norm_weights_change_and_the_original_network_does_not(network, images):
    before = copy.deepcopy(network.state_dict())
    tent = Tent(network, 0.1)
    tent(images)
    after = tent.network.state_dict()
    assert {name for name in after if not torch.equal(after[name], before[name])} == {"1.weight", "1.bias"}
    assert all(torch.equal(entry, before[name]) for name, entry in network.state_dict().items())


def test_the_first_prediction_uses_batch_statistics(network, images):
    reference = copy.deepcopy(network)
    reference[1].track_running_stats, reference[1].running_mean, reference[1].running_var = False, None, None
    assert torch.equal(Tent(network.eval(), 0.1)(images), reference.eval()(images))


def test_a_step_lowers_the_entropy(network, images):
    tent = Tent(network, 0.01)
    first, second = (tent._entropy(tent(images)) for _ in range(2))
    assert second < first


def test_entropy_of_equal_logits_is_the_logarithm_and_flat(network):
    logits = torch.zeros(5, 4, dtype=torch.float64, requires_grad=True)
    entropy = Tent(network)._entropy(logits)
    entropy.backward()
    assert entropy.item() == pytest.approx(math.log(4)) and float(logits.grad.abs().max()) < 1e-15


def test_pixels_of_structures_have_binary_entropies():
    tent = Tent(UNet(features=(4, 4, 4, 8, 8, 4), norm="batch").build(1, 2), sigmoid=True)
    assert tent._entropy(torch.zeros(1, 2, 4, 4)).item() == pytest.approx(2 * math.log(2))  # of two structures
    assert tent(torch.rand(2, 1, 32, 32)).shape == (2, 2, 32, 32)


@pytest.mark.parametrize("network", [UNet(features=(4, 4, 4, 8, 8, 4)), DenseNetwork(8, 4, (1, 1), "batch_statistics")])
def test_networks_without_batch_norm_weights_are_rejected(network):
    with pytest.raises(UserError, match="no BatchNorm with weights"):
        Tent(network.build(3, 2))


def test_tent_works_under_no_grad_and_after_eval(network, images):
    tent = Tent(network, 0.1)
    with torch.no_grad():
        one, two = tent.eval()(images), tent.eval()(images)
    assert not one.requires_grad and not torch.equal(one, two)
