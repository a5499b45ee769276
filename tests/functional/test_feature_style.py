"""Shifting, exploring and mixing the style of feature maps: neutral settings, and the statistics of the output."""

import numpy as np
import pytest
import torch

from medfed.functional.clustering import kmeans_plus_plus
from medfed.functional.feature_style import (
    EPSILON,
    SiteStyle,
    compute_site_style,
    explore_and_mix_styles,
    explore_styles,
    feature_mean_std,
    mix_styles,
    shift_style,
)
from medfed.functional.sampling import draw_mixing_partners, draw_oversampled

B, C = 6, 5


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


@pytest.fixture
def features():
    """Six maps of five channels, each in a style of its own."""
    std = draw(B, C, 1, 1, seed=1).abs() + 0.5
    return draw(B, C, 12, 9) * std + 2 * draw(B, C, 1, 1, seed=2)


@pytest.fixture
def received():
    """A style far from all of them, with a small spread."""
    return SiteStyle(100 + draw(C, seed=3), 3 + draw(C, seed=4).abs(), torch.full((C,), 0.2), torch.full((C,), 0.1))


def has_style(maps, mean, std):
    """Means agree up to rounding, deviations up to the fraction epsilon / (2 * variance of the map before)."""
    torch.testing.assert_close(maps.mean((2, 3)), mean, atol=1e-12, rtol=0)
    torch.testing.assert_close(maps.std((2, 3)), std, atol=0, rtol=1e-5)


def test_the_style_of_a_site_by_hand():
    """Means 1 and 3: mean 2, unbiased variance 2. Deviations 4 and 4: mean 4, variance 0."""
    style = compute_site_style(torch.tensor([[1.0], [3.0]]), torch.tensor([[4.0], [4.0]]))
    assert [entry.item() for entry in style] == pytest.approx([2, 4, (2 + 1e-6) ** 0.5, 1e-3])
    assert all(entry.dtype == torch.float32 and entry.shape == (1,) for entry in style)


def test_the_style_of_a_single_image_has_almost_no_spread(features):
    mean, std = feature_mean_std(features[:1])
    style = compute_site_style(mean, std)
    assert torch.equal(style.mean, mean[0].float()) and torch.equal(style.std, std[0].float())
    assert torch.cat(style[2:]).tolist() == pytest.approx([1e-3] * 2 * C)


def test_a_small_spread_around_a_large_mean_survives():
    """A spread of 0.01 around 1000, which float32 sums of squares lose."""
    means = (1000 + 0.01 * draw(500, 1)).float()
    expected = (means.double().var() + EPSILON).sqrt().item()
    assert compute_site_style(means, means).mean_spread.item() == pytest.approx(expected, rel=1e-6)


def test_half_the_batch_is_bit_identical(features, received):
    """They are the samples that k-means++ selects on means and deviations together."""
    for seed in range(10):
        output = shift_style(features, received, generator(seed))
        same = (output == features).flatten(1).all(dim=1).nonzero()[:, 0]
        centres = kmeans_plus_plus(torch.cat(feature_mean_std(features), dim=1), B // 2, generator(seed))
        assert same.tolist() == sorted(centres.tolist()) and len(same) == B // 2


def test_shifted_samples_get_the_style_of_the_other_site(features, received):
    """Without spread, exactly that style."""
    still = received._replace(mean_spread=torch.zeros(C), std_spread=torch.zeros(C))
    output = shift_style(features, still, generator(), n_kept=0)
    has_style(output, still.mean.expand(B, C), still.std.expand(B, C))


def test_shifted_styles_spread_as_the_other_site_s():
    """600 samples of 5 channels, 3000 draws each: four standard errors of mean and deviation."""
    style = SiteStyle(*(torch.full((C,), value) for value in (10.0, 5.0, 2.0, 0.5)))
    mean, std = feature_mean_std(shift_style(draw(600, C, 6, 6), style, generator(), n_kept=0))
    for output, centre, spread in ((mean, 10, 2), (std, 5, 0.5)):
        assert abs(output.mean() - centre) < 4 * spread / 3000**0.5
        assert abs(output.std() - spread) < 4 * spread / 6000**0.5
    assert abs(torch.corrcoef(torch.stack([mean.flatten(), std.flatten()]))[0, 1]) < 4 / 3000**0.5


def test_a_negative_random_deviation_becomes_zero(features):
    """Deviation 0 with spread 1: half of the channels become constant, none is mirrored."""
    style = SiteStyle(torch.zeros(C), torch.zeros(C), torch.zeros(C), torch.ones(C))
    output = shift_style(features, style, generator(), n_kept=0)
    constant = (output == 0).flatten(2).all(dim=2)
    assert 4 < constant.sum() < 26
    assert (((output * features).mean((2, 3)) - output.mean((2, 3)) * features.mean((2, 3))) > -1e-12).all()


def test_with_several_styles_each_sample_gets_one_of_them():
    """Means 0 and 100 without spread: 200 samples, about half each, and never a mixture."""
    many = SiteStyle(torch.tensor([[0.0], [100]]).expand(2, C), *(torch.full((2, C), value) for value in (1.0, 0, 0)))
    mean = feature_mean_std(shift_style(draw(200, C, 4, 4), many, generator(), n_kept=0))[0]
    first, second = (mean.abs() < 1e-9).all(dim=1), ((mean - 100).abs() < 1e-9).all(dim=1)
    assert (first ^ second).all() and abs(first.sum() - 100) < 4 * 50**0.5


@pytest.mark.parametrize("n", [1, 2, 3])
def test_small_batches_shift_the_larger_half(n, features, received):
    output = shift_style(features[:n], received, generator())
    assert (output != features[:n]).flatten(1).any(dim=1).sum() == n - n // 2
    assert torch.equal(shift_style(features[:n], received, generator(), n_kept=n), features[:n])


def test_level_zero_keeps_the_styles(features):
    added = torch.tensor([3, 0, 3])
    torch.testing.assert_close(explore_styles(features, added, level=0.0), features[added], atol=4e-15, rtol=4e-16)


def test_exploration_moves_styles_away_from_the_batch_average(features):
    """Also where only some samples are added, the centre is that of the whole batch."""
    added = torch.tensor([3, 0, 3, 5])
    mean, std = feature_mean_std(features)
    output = explore_styles(features, added, level=0.5)
    has_style(output, (mean + 0.5 * (mean - mean.mean(0)))[added], (std + 0.5 * (std - std.mean(0)))[added])


def test_a_deviation_below_three_quarters_of_the_mean_becomes_negative_or_is_clamped():
    """Deviations 1 and 3, mean 2, a = 3: 1 + 3 (1 - 2) = -2, and 3 + 3 (3 - 2) = 6."""
    maps = torch.tensor([-1.0, 1.0], dtype=torch.float64).view(1, 1, 1, 2) / 2**0.5
    features = torch.cat([maps, 3 * maps])
    turned = explore_styles(features, torch.tensor([0, 1]), clamp=False)
    torch.testing.assert_close(turned, torch.cat([-2 * maps, 6 * maps]), atol=1e-5, rtol=0)
    cut = explore_styles(features, torch.tensor([0, 1]))
    torch.testing.assert_close(cut, torch.cat([0 * maps, 6 * maps]), atol=1e-5, rtol=0)


def test_explore_and_mix_equals_explore_then_mix_if_no_deviation_is_clamped(features):
    added = draw_oversampled(torch.tensor([0, 0, 0, 1, 1, 2]), 4, generator())
    ratio, partners = draw_mixing_partners(B + 4, 0.5, generator())
    in_turn = mix_styles(torch.cat([features, explore_styles(features, added, 0.5)]), ratio, partners)
    output = explore_and_mix_styles(features, added, ratio, partners, 0.5)
    torch.testing.assert_close(output, in_turn, atol=1e-4, rtol=1e-5)


def test_exploring_no_sample_equals_mixing(features):
    ratio, partners = draw_mixing_partners(B, 0.5, generator())
    nobody = torch.zeros(0, dtype=torch.long)
    assert torch.equal(explore_and_mix_styles(features, nobody, ratio, partners), mix_styles(features, ratio, partners))


def test_a_channel_with_extrapolated_deviation_zero_keeps_its_content_when_mixed():
    """Deviations 1 and 3 as above; the first explored to 0, then given the style of the second: 3."""
    maps = torch.tensor([-1.0, 1.0], dtype=torch.float64).view(1, 1, 1, 2) / 2**0.5
    features = torch.cat([maps, 3 * maps])
    output = explore_and_mix_styles(features, torch.tensor([0]), torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0, 2, 1]))
    torch.testing.assert_close(output, torch.cat([maps, 3 * maps, 3 * maps]), atol=1e-5, rtol=0)


def test_statistics_are_constants_to_the_gradient(features):
    """So the gradient of the sum of a map is the scale: mixed over own deviation, the same for each pixel."""
    features.requires_grad_()
    ratio, partners = draw_mixing_partners(B, 0.5, generator())
    mix_styles(features, ratio, partners).sum().backward()
    std = feature_mean_std(features)[1].detach()
    scale = (ratio[:, None] * std + (1 - ratio[:, None]) * std[partners]) / std
    torch.testing.assert_close(features.grad, scale[..., None, None].expand_as(features))


def test_the_gradient_of_a_shift_passes_through_all_samples(features, received):
    features.requires_grad_()
    output = shift_style(features, received, generator())
    output.sum().backward()
    same = (output == features).flatten(1).all(dim=1)
    assert (features.grad[same] == 1).all() and features.grad.all() and (features.grad[~same] != 1).any()


def test_half_precision_stays_and_one_pixel_is_finite(features, received):
    nobody = torch.zeros(0, dtype=torch.long)
    ratio, partners = draw_mixing_partners(B, 0.1, generator())
    for maps in (features.half(), features[..., :1, :1].float()):
        results = (
            shift_style(maps, received, generator()),
            explore_styles(maps, partners[:2]),
            mix_styles(maps, ratio, partners),
            explore_and_mix_styles(maps, nobody, ratio, partners),
        )
        for result in results:
            assert result.dtype == maps.dtype and result.isfinite().all()


def test_the_given_generator_determines_the_shift_and_no_other_is_used(features, received):
    state = torch.get_rng_state()
    assert torch.equal(shift_style(features, received, generator(7)), shift_style(features, received, generator(7)))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, s: compute_site_style(torch.ones(0, 3), torch.ones(0, 3)), "means and stds must"),
        (lambda f, s: compute_site_style(torch.ones(2, 3), torch.ones(2, 4)), "means and stds must"),
        (lambda f, s: shift_style(f, s, generator(), n_kept=7), r"n_kept must be in 0\.\.6"),
        (lambda f, s: shift_style(f[:, :4], s, generator()), r"must be four tensors \(4,\)"),
        (lambda f, s: shift_style(f, s._replace(std=torch.ones(2, C)), generator()), "must be four tensors"),
        (lambda f, s: shift_style(f[0], s, generator()), "features must be"),
        (lambda f, s: mix_styles(f, torch.ones(5), torch.arange(6)), "ratio and partners must"),
        (lambda f, s: mix_styles(f, torch.full((6,), 1.1), torch.arange(6)), r"ratio must be in \[0, 1\]"),
        (lambda f, s: explore_and_mix_styles(f, torch.tensor([0]), torch.ones(6), torch.arange(6)), r"must be \(7,\)"),
    ],
)
def test_wrong_arguments_are_rejected(features, received, call, message):
    with pytest.raises(ValueError, match=message):
        call(features, received)


def test_features_without_a_finite_style_are_returned_unchanged():
    """The features are finite, but their squares overflow float32; the training's loss will show it."""
    features = torch.full((4, 2, 3, 3), 1e20) * torch.arange(9).reshape(3, 3)
    style = SiteStyle(*(torch.ones(2) for _ in range(4)))
    assert torch.equal(shift_style(features, style, torch.Generator().manual_seed(0)), features)


def test_mixing_equals_mixstyles_formula_in_numpy(features):
    """eq. 5-7 of MixStyle, image by image, with the statistics of the authors' code (unbiased, 1e-6 in the root)."""
    ratio, partners = draw_mixing_partners(B, 0.5, generator())
    x = features.numpy()
    mean, std = x.mean(axis=(2, 3)), np.sqrt(x.var(axis=(2, 3), ddof=1) + 1e-6)
    expected = np.empty_like(x)
    for i, (r, j) in enumerate(zip(ratio.tolist(), partners.tolist(), strict=True)):
        for c in range(C):
            normalised = (x[i, c] - mean[i, c]) / std[i, c]
            expected[i, c] = normalised * (r * std[i, c] + (1 - r) * std[j, c]) + r * mean[i, c] + (1 - r) * mean[j, c]
    np.testing.assert_allclose(mix_styles(features, ratio, partners).numpy(), expected, rtol=1e-10, atol=1e-12)
