import numpy as np
import pytest
import torch

from medfed.functional.feature_style import add_style_noise


def maps(n: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, 6, 6, dtype=torch.float64, generator=rng) * (1 + torch.arange(n)[:, None, None, None])


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def test_factor_zero_or_a_single_image_returns_the_input_unchanged():
    assert torch.equal(add_style_noise(maps(4), rng(), 0.0), maps(4))
    assert torch.equal(add_style_noise(maps(1), rng()), maps(1))


def test_gradients_pass_through_the_statistics():
    """Adding a constant to a channel of one image moves its mean, the spread, and so the other images."""
    features = maps(3).requires_grad_()
    add_style_noise(features, rng())[0].sum().backward()
    assert features.grad[1].abs().sum() > 0
    assert torch.autograd.gradcheck(lambda f: add_style_noise(f, rng()), maps(2).requires_grad_())


def test_a_negative_factor_is_rejected():
    with pytest.raises(ValueError, match="factor"):
        add_style_noise(maps(2), rng(), -1.0)


def test_the_noise_equals_the_papers_formula_in_numpy():
    """eq. 5-7 of DSU, image by image and channel by channel, with the statistics of the authors' code (unbiased)."""
    x, factor = maps(4).numpy(), 0.7
    noise = torch.randn(2, 4, 3, dtype=torch.float64, generator=rng()).numpy()
    mean, std = x.mean(axis=(2, 3)), np.sqrt(x.var(axis=(2, 3), ddof=1) + 1e-6)
    spread_of_mean = np.sqrt(mean.var(axis=0, ddof=1) + 1e-6)
    spread_of_std = np.sqrt(std.var(axis=0, ddof=1) + 1e-6)
    expected = np.empty_like(x)
    for i in range(4):
        for c in range(3):
            beta = mean[i, c] + factor * noise[0, i, c] * spread_of_mean[c]
            gamma = std[i, c] + factor * noise[1, i, c] * spread_of_std[c]
            expected[i, c] = gamma * (x[i, c] - mean[i, c]) / std[i, c] + beta
    np.testing.assert_allclose(add_style_noise(maps(4), rng(), factor).numpy(), expected, rtol=1e-10)
