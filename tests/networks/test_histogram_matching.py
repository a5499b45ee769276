import numpy as np
import pytest
import torch

from medfed.networks.parts.style_layers import mix_histograms


def maps(n: int, seed: int = 0, side: int = 5) -> torch.Tensor:
    return torch.randn(n, 3, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def matched(content: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
    """Return the content with exactly the histograms of the style."""
    n = len(content)
    partners = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return mix_histograms(torch.cat([content, style]), torch.zeros(2 * n), partners)[:n]


def test_by_hand():
    """Content 5 1 3 has ranks 2 0 1; of the style's 10 20 30 these are 30 10 20."""
    content, style = (torch.tensor(row, dtype=torch.float64).view(1, 1, 1, 3) for row in ([5, 1, 3], [20, 30, 10]))
    assert matched(content, style).flatten().tolist() == [30, 10, 20]


def test_matching_with_itself_returns_the_input_unchanged():
    content = maps(2).clamp(min=0)  # with many ties, as after a ReLU
    assert torch.equal(matched(content, content.clone()), content)


def test_the_gradient_passes_to_the_content_and_follows_the_styles_numbers():
    content = torch.tensor([[[[5.0, 1.0, 3.0]]]], requires_grad=True)
    style = torch.tensor([[[[20.0, 30.0, 10.0]]]], requires_grad=True)
    matched(content, style).mul(torch.tensor([1.0, 2.0, 4.0])).sum().backward()
    assert content.grad.flatten().tolist() == [1, 2, 4], "as if nothing had been changed"
    assert style.grad.flatten().tolist() == [4, 1, 2], "20 went to place 2, 30 to 0, 10 to 1"


@pytest.mark.parametrize("ratio", [torch.ones(2), torch.full((3,), 1.5)], ids=["too few", "above one"])
def test_wrong_ratios_and_partners_are_rejected(ratio):
    with pytest.raises(ValueError, match="ratio"):
        mix_histograms(maps(3), ratio, torch.arange(3))


def test_mixing_equals_efdmix_in_numpy():
    """For each image and channel: the value of rank r moves towards the partner's value of rank r."""
    features, partners = maps(4), [2, 0, 3, 1]
    ratio = torch.tensor([0.9, 0.2, 0.5, 0.0], dtype=torch.float64)
    x = features.flatten(2).numpy()
    expected = x.copy()
    for i, j in enumerate(partners):
        for c in range(3):
            for rank, place in enumerate(np.argsort(x[i, c])):
                expected[i, c, place] += (1 - float(ratio[i])) * (np.sort(x[j, c])[rank] - x[i, c, place])
    out = mix_histograms(features, ratio, torch.tensor(partners)).flatten(2).numpy()
    np.testing.assert_allclose(out, expected, rtol=1e-12)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 4, 4, 2)])
def test_maps_that_are_neither_images_nor_volumes_are_rejected(shape):
    with pytest.raises(ValueError, match="features must be"):
        mix_histograms(torch.rand(shape), torch.rand(2), torch.tensor([1, 0]))
