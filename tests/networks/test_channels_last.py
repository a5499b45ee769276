"""Feature maps channels last: the same output and gradients up to rounding, and weights in the usual layout."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from medfed.functional.hooks import capture_features, replace_output
from medfed.networks.densenet import DenseNetwork
from medfed.networks.efficientnet_lite import EfficientNetLite
from medfed.networks.efficientnet_unet import EfficientNetUNet

CASES = {
    "_conv_stem": (EfficientNetLite(pretrained=False, dropout=0.0, drop_connect=0.0), 1),
    "encoder.stem.1": (EfficientNetUNet(pretrained=False, drop_connect=0.0), 3),
    "features.conv0": (DenseNetwork(init_features=8, growth_rate=4, blocks=(2, 2)), 1),
}


@pytest.mark.parametrize("stem", CASES)
def test_the_layout_changes_outputs_and_gradients_only_by_rounding_and_no_weight(stem):
    settings, channels = CASES[stem]
    network, stage = settings.build(channels, 2).double(), settings.encoder_stages[0]
    weights = {name: entry.detach().clone().requires_grad_() for name, entry in network.named_parameters()}
    image = torch.randn(2, channels, 64, 64).double()

    def forward():
        with capture_features(network, [stage]) as seen:
            output = functional_call(network, weights, (image,))
        first = torch.autograd.grad(F.softplus(output).mean(), weights[f"{stem}.weight"], create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), weights[f"{stem}.weight"])
        return seen[stage].is_contiguous(memory_format=torch.channels_last), (output, *first, *second)

    is_last, ours = forward()
    with replace_output(network, {stem: torch.Tensor.contiguous}):
        is_last_of_contiguous, theirs = forward()
    assert is_last and not is_last_of_contiguous
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
    network(image).sum().backward()
    torch.optim.SGD(network.parameters(), 0.1).step()
    assert all(entry.is_contiguous() for entry in network.state_dict().values())
