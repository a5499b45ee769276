import pytest
import torch

from medfed.methods.rsc import channel_mask, position_mask, select_largest_drops


def random_maps(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("side, share, dropped", [(7, 1 / 3, 17), (12, 1 / 3, 48), (2, 0.3, 2), (1, 0.3, 0), (3, 1, 8)])
def test_the_given_fraction_of_positions_is_masked_on_maps_of_any_size(side, share, dropped):
    """49 / 3 rounded up is 17, and a map is never masked completely."""
    keep = position_mask(random_maps(4, 5, side, side), random_maps(4, 5, side, side, seed=1), share)
    assert keep.shape == (4, 1, side, side)
    assert (keep == 0).sum(dim=(1, 2, 3)).tolist() == [dropped] * 4


@pytest.mark.parametrize("channels, share, dropped", [(512, 1 / 3.2, 160), (16, 1 / 3, 6), (30, 0.1, 3), (8, 0, 0)])
def test_the_given_fraction_of_channels_is_masked(channels, share, dropped):
    keep = channel_mask(random_maps(2, channels, 3, 3), share)
    assert keep.shape == (2, channels, 1, 1) and (keep == 0).sum(dim=1).flatten().tolist() == [dropped] * 2


def test_positions_are_ranked_by_features_times_mean_gradient():
    """Two channels of mean gradient 1 and -1: what counts at a position is z_1 - z_2 = 3, -1, 0."""
    features = torch.tensor([[[[4.0, 1.0, 0.0]], [[1.0, 2.0, 0.0]]]])
    gradient = torch.tensor([[[[0.0, 3.0, 0.0]], [[-3.0, 0.0, 0.0]]]])
    assert position_mask(features, gradient, 1 / 3).flatten().tolist() == [0, 1, 1]
    assert position_mask(features, gradient, 2 / 3).flatten().tolist() == [0, 1, 0]


def test_channels_are_ranked_by_mean_gradient():
    gradient = torch.tensor([[[[5.0, -5.0]], [[1.0, 0.0]], [[-9.0, 0.0]]]])
    assert channel_mask(gradient, 1 / 3).flatten().tolist() == [1, 0, 1]


def test_masks_carry_no_gradient():
    features, gradient = random_maps(2, 3, 4, 4).requires_grad_(), random_maps(2, 3, 4, 4, seed=1).requires_grad_()
    assert not position_mask(features, gradient, 0.5).requires_grad and not channel_mask(gradient, 0.5).requires_grad


def test_samples_with_the_largest_positive_drops_are_selected():
    fall = torch.tensor([0.1, -0.2, 0.5, 0.3])
    assert select_largest_drops(fall, 2).tolist() == [False, False, True, True]
    assert select_largest_drops(fall, 4).tolist() == [True, False, True, True]
    assert not select_largest_drops(fall, 0).any() and not select_largest_drops(torch.zeros(3), 3).any()


def test_a_fraction_above_one_is_rejected():
    with pytest.raises(ValueError, match="fraction must be in"):
        channel_mask(random_maps(1, 3, 2, 2), 1.5)
