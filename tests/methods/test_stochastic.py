import copy

import pytest
import torch
from torch.nn import functional

from medfed.functional.hooks import features_at
from medfed.methods.fedsr import NAME, ClassGaussians, make_stochastic
from medfed.networks.densenet import DenseNetwork
from medfed.networks.efficientnet_lite import EfficientNetLite
from medfed.networks.resnet import ResidualNetwork

SMALL = DenseNetwork(init_features=8, growth_rate=4, blocks=(2, 2))
KINDS = [
    SMALL,
    ResidualNetwork(depth=10, width=4),
    ResidualNetwork(depth=10, width=4, embedding_size=6),
    EfficientNetLite(pretrained=False),
]
IMAGES = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def build(settings, n_samples: int = 20, wrap: bool = True):
    torch.manual_seed(0)
    network = settings.build(3, 2)
    if wrap:
        make_stochastic(network, settings.embedding, settings.head, n_samples)
    return network


def logits(network, training: bool = False) -> torch.Tensor:
    with torch.no_grad():
        return network.train(training)(IMAGES)


@pytest.mark.parametrize("settings", KINDS, ids=["densenet", "resnet", "resnet with embedding", "efficientnet"])
def test_every_classification_network_can_be_made_stochastic(settings):
    network = build(settings)
    assert set(build(settings, wrap=False).state_dict()) < set(network.state_dict())
    assert not torch.equal(logits(network), logits(build(settings, wrap=False)))
    assert torch.equal(logits(build(settings, 0)), logits(build(settings, wrap=False))), "no samples: mu alone"
    result, batch = logits(network), IMAGES[1:2]
    with torch.no_grad():
        single = network(batch)
        assert torch.allclose(single, result[1:2], atol=1e-5), "a prediction does not depend on the batch"


def test_with_a_linear_embedding_rho_is_computed_from_the_same_input():
    network = build(KINDS[2])
    assert getattr(network, NAME).spread.weight.shape == network.fc.embedding.weight.shape


def test_the_prediction_is_the_mean_softmax_over_the_fixed_draws():
    network = build(SMALL, 5).eval()
    layer, head = getattr(network, NAME), network.class_layers.out
    seen = {}
    network.class_layers.flatten.register_forward_hook(lambda m, i, o: seen.update(mu=o))
    result = logits(network).exp()
    sigma = functional.softplus(layer.spread(seen["mu"]))
    z = [seen["mu"] + sigma * e for e in layer.draws]
    each = torch.stack([functional.linear(one, head.weight, head.bias).softmax(1) for one in z])
    assert torch.allclose(result, each.mean(dim=0), atol=1e-6) and layer.draws.shape == (5, head.in_features)
    assert torch.equal(logits(network), logits(network))


def test_evaluation_draws_are_normal_reproducible_and_not_in_the_state_dict():
    one, other = (getattr(build(s, 200), NAME) for s in (SMALL, SMALL))
    assert torch.equal(one.draws, other.draws) and "draws" not in one.state_dict()
    assert abs(float(one.draws.mean())) < 0.06 and float(one.draws.std()) == pytest.approx(1, abs=0.05)


def test_an_evaluation_pass_that_stopped_before_the_last_layer_does_not_affect_training():
    """After an evaluation pass that ends at the embedding, training uses its own input."""
    network = build(SMALL)
    with torch.no_grad():
        features_at(network.eval(), "class_layers.flatten", IMAGES[:1])
    torch.manual_seed(1)
    result = logits(network, training=True)
    fresh = build(SMALL)
    torch.manual_seed(1)
    assert torch.equal(result, logits(fresh, training=True))


def test_a_copy_uses_its_own_layer():
    network = build(SMALL)
    copied = copy.deepcopy(network)
    torch.nn.init.constant_(getattr(copied, NAME).spread.bias, 3.0)
    assert not torch.equal(logits(copied), logits(network))
    assert torch.equal(logits(network), logits(build(SMALL)))


def test_the_divergence_is_the_closed_form_and_0_for_equal_distributions():
    """log(s2 / s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2, m1 = C mu, s1 = C sigma; r = 0 and softplus(1) for all."""
    gaussians = ClassGaussians(3, 4).double()
    mean, std = torch.rand(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    label = torch.tensor([0, 1, 2, 1, 0])
    torch.nn.init.constant_(gaussians.scale, 1.5)
    s2 = functional.softplus(torch.tensor(1.0, dtype=torch.float64))
    by_hand = (s2 / (1.5 * std)).log() + ((1.5 * std) ** 2 + (1.5 * mean) ** 2) / (2 * s2**2) - 0.5
    assert torch.allclose(gaussians.divergence(mean, std, label), by_hand.sum(dim=1))
    torch.nn.init.ones_(gaussians.scale)
    same = gaussians.divergence(torch.zeros(5, 4).double(), s2.expand(5, 4), label)
    assert torch.allclose(same, torch.zeros(5).double(), atol=1e-7)


def test_the_class_gaussians_are_parameters_and_not_in_the_state_dict():
    gaussians = torch.nn.ModuleDict({"private": ClassGaussians(2, 4), "open": torch.nn.Linear(4, 2)})
    assert set(gaussians.state_dict()) == {"open.weight", "open.bias"} and len(list(gaussians.parameters())) == 5
    gaussians.load_state_dict(gaussians.state_dict())
