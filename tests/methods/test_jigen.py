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
from medfed.methods.jigen import NAME, JiGen, draw_puzzles, shuffle_tiles, tile_permutations
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


def test_the_term_is_the_cross_entropy_of_the_permutations(any_toy):
    """With a head of zeros all permutations are equally likely: the term is weight * log 31."""
    method = JiGen(weight=0.5)
    local = local_round(any_toy, method)
    torch.nn.init.zeros_(getattr(local.network, NAME).weight), torch.nn.init.zeros_(getattr(local.network, NAME).bias)
    output = FedAvg().loss(local, batch_of(any_toy))[1]
    assert float(method.regulariser(local, output).detach()) == pytest.approx(0.5 * 3.43399, abs=1e-4)


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
