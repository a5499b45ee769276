import pytest
import torch
from torch import nn
from torch.func import functional_call

from medfed.functional.hooks import capture_features, insert_layer, replace_output


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).double()


def test_captured_features_are_the_layer_s_output_also_with_other_weights():
    net, x = network(), torch.ones(1, 2, dtype=torch.float64)
    zeros = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    with capture_features(net, ["0"]) as seen:
        functional_call(net, zeros, (x,))
        assert torch.equal(seen["0"], torch.zeros(1, 3, dtype=torch.float64))
        net(x)
        assert torch.equal(seen["0"], net[0](x))
    assert not net[0]._forward_hooks, "the hooks are gone afterwards"


def test_a_replacement_can_run_before_earlier_hooks_of_the_same_module():
    net, x = network(), torch.ones(1, 2, dtype=torch.float64)
    seen = []
    net[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    with replace_output(net, {"0": lambda output: output[:0]}, first=True):
        assert net(x).shape == (0, 1) and seen[0].shape == (0, 3)
    with replace_output(net, {"0": lambda output: output[:0]}):
        assert net(x).shape == (0, 1) and seen[1].shape == (1, 3), "after the earlier hook, with its output"


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def test_inserting_a_layer_renames_no_entry():
    net, x = Chain(), torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before, plain = set(net.state_dict()), net(x)
    insert_layer(net, "body.1", nn.Linear(3, 3, bias=False).double(), "extra")
    assert set(net.state_dict()) == before | {"extra.weight"}
    net.extra.weight.data = 2 * torch.eye(3, dtype=torch.float64)
    assert torch.allclose(net(x) - net.body[2].bias, 2 * (plain - net.body[2].bias))


def test_a_used_name_and_a_sequential_are_rejected():
    with pytest.raises(ValueError, match="already has a submodule or attribute 'body'"):
        insert_layer(Chain(), "body.1", nn.Identity(), "body")
    with pytest.raises(ValueError, match="Sequential"):
        insert_layer(network(), "1", nn.Identity(), "extra")
