import pytest
from toy_runs import shared_bits, shared_run

from medfed.core.errors import UserError
from medfed.methods.ccst import CCST
from medfed.methods.dsu import DSU
from medfed.methods.fedavg import FedAvg
from medfed.methods.stack import Stack
from medfed.networks.style_layers import DSU as Layer
from medfed.networks.unet import UNet
from medfed.outputs.bundle.export import select_inference_weights
from medfed.testing.toy import ToySegmentation


@pytest.mark.parametrize("neutral", [{"probability": 0.0}, {"factor": 0.0, "probability": 1.0}])
def test_neutral_settings_are_bit_identical_to_fedavg(any_toy, neutral):
    actual, plain, other = (shared_bits(any_toy, m) for m in (DSU(**neutral), FedAvg(), DSU(probability=1.0)))
    assert actual == plain != other


def test_with_probability_zero_dropout_is_the_same_as_in_fedavg():
    toy = ToySegmentation(UNet(features=(4, 4, 4, 8, 8, 4), dropout=0.3), n_images=6)
    assert shared_bits(toy, DSU(probability=0.0)) == shared_bits(toy, FedAvg())


def test_its_layers_follow_the_chosen_stages_with_its_settings(any_toy):
    network = any_toy.network(DSU(stages=(2,), probability=0.25, factor=0.7))
    actual = {name: part for name, part in network.named_modules() if isinstance(part, Layer)}
    layer = actual.pop("dsu_2")
    assert not actual and layer.probability == 0.25 and layer.factor == 0.7
    hooks = network.get_submodule(any_toy.architecture.encoder_stages[1])._forward_hooks.values()
    assert [hook.layer for hook in hooks] == [layer]


def test_only_weights_are_shared(any_toy):
    done, plain = (shared_run(any_toy, method).rounds[0].ledger for method in (DSU(probability=1.0), FedAvg()))
    assert [row["name"] for row in done] == [row["name"] for row in plain]


def test_a_bundle_contains_the_plain_network(any_toy):
    method = DSU(probability=1.0)
    weights = any_toy.start(method).weights
    exported, wrap = select_inference_weights(method, any_toy.architecture, any_toy.task, weights)
    assert wrap is None and exported.keys() == any_toy.start(FedAvg()).weights.keys()


@pytest.mark.filterwarnings("ignore:.*(method.k is|along the outlines of the masks)")
def test_in_a_stack_with_ccst_both_methods_have_an_effect(any_toy):
    ccst = CCST(k=2, transfer="moments", min_patients=1)
    both = shared_bits(any_toy, Stack((ccst, DSU(probability=1.0))))
    assert both not in (shared_bits(any_toy, Stack((ccst,))), shared_bits(any_toy, DSU(probability=1.0)))


def test_a_stage_that_the_network_lacks_is_rejected(toy):
    with pytest.raises(UserError, match="method.stages: .* stages 1 to 3; remove all other numbers"):
        toy.network(DSU(stages=(1, 6)))


@pytest.mark.parametrize("invalid", [{"factor": -1.0}, {"stages": (2, 2)}, {"probability": 1.1}])
def test_invalid_settings_are_rejected(invalid):
    with pytest.raises(ValueError, match=next(iter(invalid))):
        DSU(**invalid)
