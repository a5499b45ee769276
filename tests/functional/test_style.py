"""AdaIN, moments of all pixels of a site and moment matching, against values computed by hand in float64."""

from functools import reduce

import pytest
import torch

from medfed.functional.style import EPSILON, PixelMoments, adain, channel_mean_std, moment_match


def moments_of(*batches):
    return reduce(PixelMoments.merge, map(PixelMoments.from_features, batches))


@pytest.fixture
def features():
    return 3 * torch.randn(2, 5, 12, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1


@pytest.fixture
def style():
    rng = torch.Generator().manual_seed(1)
    return torch.randn(5, dtype=torch.float64, generator=rng), torch.rand(5, dtype=torch.float64, generator=rng) + 0.5


@pytest.mark.parametrize("epsilon", [EPSILON, 0.5])
def test_statistics_by_hand(epsilon):
    """0, 0, 2, 2: mean 1, squared deviations 4, divided by 3; epsilon is added under the root."""
    numbers = torch.tensor([0.0, 0.0, 2.0, 2.0], dtype=torch.float64).view(1, 1, 2, 2)
    mean, std = channel_mean_std(numbers, epsilon=epsilon)
    assert mean.item() == 1 and std.item() == pytest.approx((4 / 3 + epsilon) ** 0.5, abs=1e-15)
    assert epsilon != EPSILON or torch.equal(std, channel_mean_std(numbers)[1])


def test_own_statistics_are_the_identity(features):
    torch.testing.assert_close(adain(features, *channel_mean_std(features)), features, atol=1e-12, rtol=0)


def test_the_result_has_the_mean_and_deviation_of_the_style(features, style):
    """With epsilon, the deviation of a channel with variance v becomes std * sqrt(v / (v + 1e-5))."""
    result = adain(features, *style)
    torch.testing.assert_close(result.mean((2, 3)), style[0].expand(2, 5), atol=1e-14, rtol=0)
    variance = features.var((2, 3))
    expected = style[1] * (variance / (variance + EPSILON)).sqrt()
    torch.testing.assert_close(result.std((2, 3)), expected, atol=1e-14, rtol=0)
    assert (result.std((2, 3)) - style[1]).abs().max() < 1.1e-5


def test_alpha_is_linear_and_exact_at_zero_and_one(features, style):
    whole = adain(features, *style)
    torch.testing.assert_close(adain(features, *style, 0.3), 0.3 * whole + 0.7 * features, atol=1e-14, rtol=0)
    assert torch.equal(adain(features, *style, 0.0), features)
    each = adain(features, *style, torch.tensor([0.0, 1.0]))
    assert torch.equal(each[0], features[0]) and torch.equal(each[1], whole[1])


def test_a_constant_channel_becomes_the_mean_of_the_style(style):
    result = adain(torch.full((1, 5, 4, 4), 7.0, dtype=torch.float64), *style)
    torch.testing.assert_close(result, style[0].view(1, 5, 1, 1).expand(1, 5, 4, 4))


def test_a_map_of_one_pixel_gives_finite_values(style):
    mean, std = channel_mean_std(torch.tensor([[[[2.0]]]]))
    assert mean.item() == 2 and std.item() == pytest.approx(EPSILON**0.5)


def test_a_small_deviation_around_a_large_mean_survives_float32():
    """Deviation 1e-2 around 100: E[x^2] - E[x]^2 in float32 would lose it all (1e4 has steps of 1e-3)."""
    exact = 100 + 1e-2 * torch.randn(1, 2, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    image = exact.float()
    expected = (image.double().var((2, 3)) + EPSILON).sqrt()
    torch.testing.assert_close(channel_mean_std(image)[1].double(), expected, rtol=1e-4, atol=0)
    moments = moments_of(image[..., :20], image[..., 20:])
    population = (image.double().var((2, 3), correction=0)[0] + EPSILON).sqrt()
    torch.testing.assert_close(moments.std, population, rtol=1e-10, atol=0)
    styled = adain(image, torch.zeros(2), torch.ones(2))
    assert (styled.std((2, 3)) - 1).abs().max() < 0.06  # epsilon is a tenth of this variance
    assert styled.mean((2, 3)).abs().max() < 1e-2


def test_half_precision_is_computed_in_float32(features, style):
    assert channel_mean_std(features.half())[0].dtype == torch.float32
    assert adain(features.half(), *style).dtype == torch.float16


def test_moments_of_a_site_are_those_of_all_its_pixels():
    """Images of different sizes and brightness, in batches of different length."""
    rng = torch.Generator().manual_seed(3)
    batches = [torch.rand(n, 3, h, w, generator=rng) * n + h for n, h, w in ((4, 8, 8), (1, 5, 30), (2, 16, 3))]
    moments = moments_of(*batches)
    pixels = torch.cat([batch.double().movedim(1, 0).flatten(1) for batch in batches], dim=1)
    assert moments.count == pixels.shape[1]
    torch.testing.assert_close(moments.mean, pixels.mean(1), rtol=1e-13, atol=0)
    torch.testing.assert_close(moments.std, (pixels.var(1, correction=0) + EPSILON).sqrt(), rtol=1e-13, atol=0)
    torch.testing.assert_close(moments.std, moments_of(*reversed(batches)).std, rtol=1e-13, atol=0)


def test_moment_matching_keeps_the_order_of_intensities_and_the_range():
    image = torch.rand(1, 3, 20, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    result = moment_match(image, torch.tensor([0.9, 0.5, 0.4]), torch.tensor([0.3, 0.1, 0.05]))
    assert result.min() >= 0 and result.max() == 1
    order = image[0, 1].flatten().argsort()
    assert (result[0, 1].flatten()[order].diff() > 0).all()
    torch.testing.assert_close(result[0, 2].mean().item(), 0.4, atol=1e-7, rtol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: channel_mean_std(f[0]), "features must be"),
        (lambda f: channel_mean_std(f.long()), "features must be"),
        (lambda f: adain(f, torch.zeros(4), torch.ones(5)), "mean must be"),
        (lambda f: adain(f, torch.zeros(5), torch.ones(3, 5)), "std must be"),
        (lambda f: adain(f, torch.zeros(5), torch.ones(5), 1.5), "alpha must be in"),
        (lambda f: adain(f, torch.zeros(5), torch.ones(5), torch.ones(3)), "alpha must be a number or"),
        (lambda f: moments_of(f, f[:, :2]), "5 and 2 channels"),
        (lambda f: moments_of(f[:0]), "at least one pixel"),
    ],
)
def test_wrong_arguments_are_rejected(features, call, message):
    with pytest.raises(ValueError, match=message):
        call(features)
