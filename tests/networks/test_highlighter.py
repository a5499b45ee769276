import copy

import numpy as np
import pytest
import torch

from medfed.networks.densenet import DenseNetwork
from medfed.networks.parts.highlighter import Highlighter, attach_highlighter
from medfed.networks.resnet import ResidualNetwork


def maps(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scores_by_hand(layer, features, others, similarity: str, query_of: str) -> np.ndarray:
    """The paper's attention in NumPy, image by image: S of HW x HW entries, its mean over queries, a softmax over keys.

    Args:
        layer: holds the weights of the two 1x1 convolutions.
        features: (B, C, H, W).
        others: (B, C, H, W), the feature maps of each image's partner.
    """

    def project(conv, maps):
        weight, bias = (entry.detach().numpy() for entry in (conv.weight, conv.bias))
        flat = maps.numpy().reshape(*maps.shape[:2], -1)
        return np.stack([weight[:, :, 0, 0] @ one + bias[:, None] for one in flat])

    def scaled(one):
        return one / np.linalg.norm(one, axis=0) if similarity == "cosine" else one

    maps = []
    for own, other, key in zip(
        project(layer.query, features), project(layer.query, others), project(layer.key, features), strict=True
    ):
        query = {"both": (scaled(other) + scaled(own)) / 2, "own": scaled(own), "partner": scaled(other)}[query_of]
        score = (query.T @ scaled(key)).mean(axis=0)
        maps.append(np.exp(score) / np.exp(score).sum())
    return np.stack(maps).reshape(len(features), *features.shape[2:])


@pytest.mark.parametrize("similarity", ["inner", "cosine"])
@pytest.mark.parametrize("query_of", ["both", "own", "partner"])
def test_each_similarity_and_query_equals_the_formula_in_numpy(similarity, query_of):
    """Image 2 has its partner outside of the batch: index 3 is the first of the second samples."""
    torch.manual_seed(0)
    layer = Highlighter(6, 3, 4, similarity, query_of).double()
    features, second = 3 * maps(3, 6, 2, 4), maps(1, 6, 2, 4, seed=1)
    others = torch.cat([features[[1, 0]], second])
    with layer.use_partners(torch.tensor([1, 0, 3]), second):
        actual = layer.scores(features).detach().numpy()
    np.testing.assert_allclose(actual, scores_by_hand(layer, features, others, similarity, query_of), rtol=1e-12)
    alone = scores_by_hand(layer, features, others, similarity, "own")
    np.testing.assert_allclose(layer.scores(features).detach().numpy(), alone, rtol=1e-12)


def test_the_baseline_of_the_same_size_uses_no_query():
    torch.manual_seed(0)
    layer, features = Highlighter(6, 3, 4, query_of="none").double(), maps(3, 6, 2, 4)
    both = torch.cat([layer.query(features), layer.key(features)], dim=1)
    score = (both * (both > 0)).sum(dim=1).flatten(1) / 8
    expected = (score.exp() / score.exp().sum(dim=1, keepdim=True)).reshape(3, 2, 4)
    with layer.use_partners(torch.tensor([1, 2, 0])):
        assert torch.allclose(layer.scores(features), expected)
    sizes = {sum(p.numel() for p in Highlighter(6, 3, 4, query_of=one).parameters()) for one in ("both", "none")}
    assert len(sizes) == 1


def test_the_number_of_weights_is_the_paper_s_without_the_unused_ones():
    """2 (512 * 30 + 30) + 512 * 7 = 34,364 of ResNet18's 11,180,103: 0.307 %; with the unused ones 49,756, 0.445 %."""
    network = ResidualNetwork(depth=18).build(3, 7)
    plain = sum(p.numel() for p in network.parameters())
    added = sum(p.numel() for p in Highlighter(512, 7).parameters())
    assert (plain, added) == (11_180_103, 34_364)
    assert added - 7 * 512 == 46_172 - 15_392


def wrapped(settings) -> torch.nn.Module:
    torch.manual_seed(0)
    network = settings.build(3, 2)
    channels = network.get_submodule(settings.head).in_features
    attach_highlighter(network, settings.last_features, settings.head, Highlighter(channels, 2, 4))
    return network.eval()


SMALL = [ResidualNetwork(depth=10, width=8), DenseNetwork(init_features=8, growth_rate=4, blocks=(2, 2))]


@pytest.mark.parametrize("settings", SMALL, ids=["resnet", "densenet"])
def test_logits_are_those_of_a_classifier_of_twice_the_width(settings):
    network = wrapped(settings)
    image = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    seen = {}
    handle = network.get_submodule(settings.last_features).register_forward_hook(
        lambda module, inputs, output: seen.update(z=output)
    )
    logits = network(image)
    handle.remove()
    head, own = network.get_submodule(settings.head), network.highlighter
    attended = torch.einsum("bhw,bchw->bc", own.scores(seen["z"]), seen["z"])
    both = torch.cat([seen["z"].mean(dim=(2, 3)), attended], dim=1)
    wide = torch.cat([head.weight, own.classifier.weight], dim=1)
    assert torch.allclose(logits, both @ wide.T + head.bias, atol=1e-6)


def test_a_copy_has_its_own_attention():
    network = wrapped(SMALL[0])
    image = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    before, other = network(image), copy.deepcopy(network)
    other.highlighter.classifier.weight.data.zero_()
    assert torch.equal(network(image), before) and not torch.equal(other(image), before)
