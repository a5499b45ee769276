import math

import pytest
import torch

from medfed.methods.fisc import clustered_site_style, interpolation_style, mixture_mean_std


def styles(n: int, channels: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    mean = torch.randn(n, channels, dtype=torch.float64, generator=rng)
    return mean, torch.rand(n, channels, dtype=torch.float64, generator=rng)


def test_a_mixture_of_two_parts_with_deviation_1_around_minus_2_and_2_has_deviation_root_5():
    mean, std = mixture_mean_std(torch.tensor([[-2.0], [2.0]]), torch.ones(2, 1))
    assert (float(mean), float(std)) == (0.0, pytest.approx(math.sqrt(5)))


def test_one_cluster_is_the_style_of_all_pixels():
    """Three images of 50 pixels: the moments of the 150 pixels together."""
    pixels = torch.randn(3, 50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + torch.arange(4)
    mean, std, label = clustered_site_style(pixels.mean(dim=1), pixels.std(dim=1, correction=0))
    assert label.tolist() == [0, 0, 0], "FINCH makes one cluster of three"
    every = pixels.flatten(0, 1)
    assert torch.allclose(mean, every.mean(dim=0)) and torch.allclose(std, every.std(dim=0, correction=0))


def two_looks() -> tuple[torch.Tensor, torch.Tensor]:
    """Nine images of one style and three of another; all deviations are 0.01."""
    looks = torch.tensor([[8.0, 0.0]]).repeat(9, 1), torch.tensor([[0.0, 8.0]]).repeat(3, 1)
    return torch.cat(looks).double(), torch.full((12, 2), 0.01, dtype=torch.float64)


def test_a_rare_style_counts_as_much_as_a_common_one():
    mean, std, label = clustered_site_style(*two_looks())
    assert len(label[:9].unique()) == len(label[9:].unique()) == 1 and len(label.unique()) == 2
    assert torch.allclose(mean, torch.tensor([4.0, 4.0]).double(), atol=0.02)
    assert torch.allclose(std, torch.tensor([4.0, 4.0]).double(), atol=0.02), "half of 8 lies between the looks"
    alike, narrow, _ = clustered_site_style(*two_looks(), spread="mean")
    assert torch.equal(alike, mean) and narrow.max() < 0.05
    without, _, label = clustered_site_style(*two_looks(), partition="none")
    assert not label.any() and torch.allclose(without, torch.tensor([6.0, 2.0]).double(), atol=0.02)


def test_the_style_of_one_site_is_the_interpolation_style():
    mean, std = styles(1)
    result = interpolation_style(mean, std)
    assert torch.equal(result[0], mean[0]) and torch.equal(result[1], std[0]) and result[2] == 1


@pytest.mark.parametrize("n", [2, 3, 7])
def test_equal_styles_give_that_style(n):
    mean, std = (one.expand(n, -1) for one in styles(1))
    result = interpolation_style(mean, std)
    assert torch.allclose(result[0], mean[0]) and torch.allclose(result[1], std[0])


@pytest.mark.parametrize("n", [2, 3])
def test_with_up_to_three_sites_the_interpolation_style_is_the_mean(n):
    for seed in range(20):
        mean, std = styles(n, seed=seed)
        result = interpolation_style(mean, std)
        assert result[2] == 1
        assert torch.allclose(result[0], mean.mean(dim=0)) and torch.allclose(result[1], std.mean(dim=0))


def test_the_order_of_the_sites_does_not_matter():
    mean, std = styles(12)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    one, other = interpolation_style(mean, std), interpolation_style(mean[order], std[order])
    assert one[2] == other[2] > 1 and torch.allclose(one[0], other[0]) and torch.allclose(one[1], other[1])


def test_the_median_of_two_clusters_is_their_middle_or_the_lower_one():
    mean = torch.tensor([[2.0, 0.0], [2.0, 0.01], [0.0, 3.0], [0.01, 3.0]], dtype=torch.float64)
    std = torch.full((4, 2), 0.1, dtype=torch.float64)
    middle, _, n = interpolation_style(mean, std)
    lower, _, _ = interpolation_style(mean, std, median="lower")
    assert n == 2
    assert torch.allclose(middle, torch.tensor([1.0, 1.5]).double(), atol=0.01)
    assert torch.allclose(lower, torch.tensor([0.0, 0.0]).double(), atol=0.01)


def test_an_unknown_partition_is_rejected():
    with pytest.raises(ValueError, match="partition must be"):
        interpolation_style(*styles(4), partition="second")
