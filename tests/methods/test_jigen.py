from dataclasses import replace

import numpy as np
import pytest
import torch
from toy_runs import batch_of, local_round, shared_weights

from medfed.core.errors import UserError
from medfed.core.seeds import stream
from medfed.federation.local_round import LocalRound
from medfed.federation.message import State, digest
from medfed.methods.fedavg import FedAvg
from medfed.methods.jigen import NAME, JiGen, draw_puzzles, shuffle_tiles, tile_permutations, turn_tiles_grey
from medfed.networks.elcfs_unet import ElcfsUNet
from medfed.testing.toy import ToyClassification


def term(toy, method) -> tuple[torch.Tensor, LocalRound]:
    local = local_round(toy, method)
    batch = batch_of(toy)
    output = FedAvg().loss(local, batch)[1]
    return method.regulariser(local, output), local


def test_with_weight_0_it_is_bit_identical_to_fedavg_and_its_head_is_not_trained(any_toy):
    method = JiGen(weight=0.0, ordered=1.0)
    start, actual = any_toy.start(method).weights, shared_weights(any_toy, method)
    plain = shared_weights(any_toy, FedAvg())
    assert digest(State(1, {n: actual[n] for n in plain}).to_bytes()) == digest(State(1, plain).to_bytes())
    head = actual.keys() - plain.keys()
    assert head == {f"{NAME}.weight", f"{NAME}.bias"} and all(torch.equal(actual[n], start[n]) for n in head)
    other = shared_weights(any_toy, JiGen())
    assert any(not torch.equal(other[name], entry) for name, entry in plain.items())


def test_the_head_sees_the_puzzles_embedding(any_toy):
    """For ordered colour images, the term is the cross-entropy of order 0 for the embedding of the raw images."""
    method = JiGen(weight=1.0, ordered=1.0, grey=0.0)
    image = batch_of(any_toy).image[..., 1:31, 1:31]  # 30 pixels: three tiles of 10
    image = torch.nn.functional.pad(image, (1, 1, 1, 1), mode="replicate")
    local = local_round(any_toy, method)
    place = any_toy.architecture.embedding or "down_2"
    batch = batch_of(any_toy)
    features = local.forward(type(batch)(image, batch.label), (place,)).features[place]
    pooled = features if features.ndim == 2 else features.flatten(2).mean(dim=2)
    by_hand = torch.nn.functional.cross_entropy(getattr(local.network, NAME)(pooled), torch.zeros(6, dtype=torch.int64))
    assert torch.allclose(term(any_toy, method)[0], by_hand, atol=1e-5)


def test_the_given_fraction_is_ordered_and_all_other_permutations_are_equally_likely():
    """Of 20,000 puzzles, 0.7 +- 4 * 0.0032 are ordered, and each other order occurs 200 +- 4.5 * 14 times."""
    image, order = draw_puzzles(
        torch.rand(1, 1, 6, 6).expand(20_000, -1, -1, -1), 3, 31, 0.7, 0.0, stream(0, "puzzles")
    )
    counts = order.bincount(minlength=31)
    assert counts[0] / 20_000 == pytest.approx(0.7, abs=0.013) and (counts[1:] - 200).abs().max() < 64
    original = image[counts.new_tensor([int((order == 0).nonzero()[0, 0])])].expand_as(image)
    puzzles = shuffle_tiles(original, tile_permutations()[order])
    assert torch.equal(image, puzzles), "the tiles of each image have the order of its label"


def test_tiles_are_grey_with_the_given_probability():
    colour = torch.tensor([1.0, 0, 0])[:, None, None].expand(2000, 3, 3, 3)
    image, _ = draw_puzzles(colour, 3, 31, 0.7, 0.1, stream(0, "puzzles"))
    assert (image[:, 1] > 0).float().mean() == pytest.approx(0.1, abs=0.01)


def test_the_puzzles_give_gradients(any_toy):
    value, local = term(any_toy, JiGen())
    value.backward()
    entry = next(iter(local.network.parameters()))
    assert entry.grad.abs().sum() > 0 and getattr(local.network, NAME).weight.grad.abs().sum() > 0


def test_predictions_do_not_use_the_head(any_toy):
    method, image = JiGen(), torch.rand(2, any_toy.task.channels, 32, 32)
    wrapped, plain = any_toy.network(method).eval(), any_toy.network(FedAvg()).eval()
    with torch.no_grad():
        assert torch.equal(wrapped(image), plain(image)), "so an export does not contain it"


def test_it_works_with_the_other_unet():
    network = JiGen().wrap_network(ElcfsUNet(width=2).build(1, 1), ElcfsUNet(width=2))
    assert getattr(network, NAME).in_features == 32


def test_images_smaller_than_the_tiles_are_rejected():
    with pytest.raises(UserError, match="3 x 3 tiles"):
        JiGen().check(2, 1)


def test_the_term_equals_the_papers_formula_with_tiles_moved_by_hand():
    """eq. 1: cross-entropy of the order, from the pooled features of images whose tiles are moved in NumPy."""
    toy, method = ToyClassification(), JiGen(weight=0.7, ordered=0.3, grey=0.0)
    batch, local = batch_of(toy), local_round(ToyClassification(), method)
    output = FedAvg().loss(local, batch)[1]
    state = local.rng.get_state()
    _, order = draw_puzzles(batch.image, 3, 31, 0.3, 0.0, local.rng)
    local.rng.set_state(state)
    puzzle = batch.image.numpy().copy()
    for one, permutation in zip(puzzle, tile_permutations()[order].tolist(), strict=True):
        original = one.copy()
        for place, tile in enumerate(permutation):  # 32 pixels: tiles of 10 from pixel 1 on, the rim is repeated
            (row, column), (from_row, from_column) = divmod(place, 3), divmod(tile, 3)
            one[:, 1 + 10 * row : 11 + 10 * row, 1 + 10 * column : 11 + 10 * column] = original[
                :, 1 + 10 * from_row : 11 + 10 * from_row, 1 + 10 * from_column : 11 + 10 * from_column
            ]
        one[:] = np.pad(one[:, 1:31, 1:31], ((0, 0), (1, 1), (1, 1)), mode="edge")
    assert len(order.unique()) > 1
    place, moved = toy.architecture.embedding, replace(batch, image=torch.from_numpy(puzzle))
    features = local.forward(moved, (place,), local.parameters()).features[place].flatten(1)
    logits = getattr(local.network, NAME)(features).detach().double().numpy()
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = -0.7 * np.log(shares[np.arange(6), order.numpy()]).mean()
    assert float(method.regulariser(local, output).detach()) == pytest.approx(expected, rel=1e-5)


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
