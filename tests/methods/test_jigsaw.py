import pytest
import torch

from medfed.methods.jigen import shuffle_tiles, tile_permutations, turn_tiles_grey


def image(side: int, channels: int = 3, n: int = 4) -> torch.Tensor:
    return torch.rand(n, channels, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_there_are_31_different_orders_and_the_first_is_the_identity():
    result = tile_permutations()
    assert result.shape == (31, 9) and result[0].tolist() == list(range(9))
    assert result.sort(dim=1).values.equal(torch.arange(9).expand(31, 9)) and len(result.unique(dim=0)) == 31


def test_permutations_differ_in_at_least_seven_of_nine_places():
    result = tile_permutations()
    distance = (result[:, None] != result[None]).sum(dim=2)
    assert distance.fill_diagonal_(9).min() == 7
    assert distance[:9, :9].min() == 9, "the first nine are a Latin square: as far apart as nine orders can be"


def test_permutations_of_four_tiles_equal_a_search_by_hand():
    """From 0123 the first permutation at distance 4 is 1032; then 2301 and 3210, all at distance 4 from each other.

    A cycle of three tiles leaves one in place, and so does its product with any double swap: distance 3 from all four.
    A swap, or a cycle of four, is an odd order, and at 2 from one of them. The first cycle of three is 0231.
    """
    assert tile_permutations(2, 5).tolist() == [[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0], [0, 2, 3, 1]]


def test_fewer_permutations_are_the_first_of_more():
    assert tile_permutations(3, 12).equal(tile_permutations()[:12])


@pytest.mark.parametrize("side", [3, 9, 30])
def test_the_identity_returns_the_image(side):
    assert shuffle_tiles(image(side), torch.arange(9).expand(4, 9)).equal(image(side))


def test_place_j_gets_the_tile_that_entry_j_names():
    numbers = torch.arange(9.0).reshape(1, 1, 3, 3)
    order = torch.tensor([[8, 0, 1, 2, 3, 4, 5, 6, 7]])
    assert shuffle_tiles(numbers, order).flatten().tolist() == [8, 0, 1, 2, 3, 4, 5, 6, 7]
    large = numbers.repeat_interleave(4, 2).repeat_interleave(4, 3)
    assert shuffle_tiles(large, order)[0, 0, :4, :4].unique().tolist() == [8]
    assert shuffle_tiles(large, order)[0, 0, 4:8, :4].unique().tolist() == [2]


def test_a_permutation_and_its_inverse_return_the_image():
    order = tile_permutations()[[1, 7, 20, 30]]
    assert shuffle_tiles(shuffle_tiles(image(12), order), order.argsort(dim=1)).equal(image(12))


@pytest.mark.parametrize("side", [31, 32])
def test_an_image_of_unfitting_size_is_cropped_and_its_edge_repeated(side):
    order = tile_permutations()[[1, 7, 20, 30]]
    result, inner = shuffle_tiles(image(side), order), slice((side - 30) // 2, (side - 30) // 2 + 30)
    assert result.shape == image(side).shape
    assert result[..., inner, inner].equal(shuffle_tiles(image(side)[..., inner, inner], order))
    assert result[..., -1, :].equal(result[..., inner.stop - 1, :])
    assert result[..., -1].equal(result[..., inner.stop - 1])


def test_only_marked_tiles_lose_their_colours():
    grey = torch.zeros(4, 9, dtype=torch.bool)
    grey[1, 5] = True  # second row, third column
    result, x = turn_tiles_grey(image(9), grey), image(9)
    luma = 0.299 * x[1, 0] + 0.587 * x[1, 1] + 0.114 * x[1, 2]
    assert torch.allclose(result[1, :, 3:6, 6:], luma[3:6, 6:].expand(3, 3, 3))
    changed = (result != x).any(dim=1)
    assert changed.sum() == 9 and changed[1, 3:6, 6:].all()
    assert turn_tiles_grey(image(9, 1), ~grey).equal(image(9, 1)), "greyscale images stay"


def test_grey_tiles_and_shuffled_tiles_are_the_same_tiles():
    """Of 32 pixels the tiles are 1-10, 11-20 and 21-30; a pixel of the margin belongs to the nearest tile."""
    grey = torch.tensor([[False, False, False, False, True, False, False, False, False]])
    changed = (turn_tiles_grey(image(32, n=1), grey) != image(32, n=1)).any(dim=1)[0]
    for axis in (0, 1):
        assert changed.any(dim=axis).nonzero().flatten().tolist() == list(range(11, 21))
    corner = (turn_tiles_grey(image(32, n=1), grey.roll(4)) != image(32, n=1)).any(dim=1)[0]
    assert corner.any(dim=1).nonzero().flatten().tolist() == list(range(21, 32))
