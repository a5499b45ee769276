"""Masked means and InfoNCE by hand, and against a plain loop over the pairs."""

import math

import pytest
import torch
import torch.nn.functional as F

from medfed.functional.contrastive import info_nce, masked_mean, pool_levels, region_embeddings

TWO_CLUSTERS = torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 2.0]] * 3, dtype=torch.float64)  # length does not matter
LABELS = torch.tensor([0, 0, 0, 1, 1, 1])


def pair_by_pair(vectors, labels, temperature, with_positive):
    """Eq. 6-7 as sums, one ordered pair after another."""
    terms = []
    for i in range(len(vectors)):
        scores = [math.exp(torch.cosine_similarity(vectors[i], other, dim=0) / temperature) for other in vectors]
        against = sum(score for score, label in zip(scores, labels, strict=True) if label != labels[i])
        for j in range(len(vectors)):
            if j != i and labels[j] == labels[i]:
                terms.append(-math.log(scores[j] / (against + with_positive * scores[j])))
    return sum(terms) / len(terms)


@pytest.mark.parametrize(
    ("vectors", "denominator", "expected"),
    [
        (TWO_CLUSTERS, "positive_and_negatives", math.log1p(3 * math.exp(-20))),  # -log(e^20 / (e^20 + 3)) = 6.18e-9
        (TWO_CLUSTERS, "negatives", math.log(3) - 20),  # -log(e^20 / 3): the printed equation falls below 0
        (torch.ones(6, 4), "positive_and_negatives", math.log(4)),  # one positive and three negatives
    ],
)
def test_clusters_of_three_by_hand(vectors, denominator, expected):
    """Orthogonal clusters, cosine 1 in and 0 across, at temperature 0.05; and equal vectors."""
    order = torch.tensor([4, 0, 3, 1, 5, 2])
    for rows, labels in ((vectors, LABELS), (vectors[order], 7 - LABELS[order])):
        torch.testing.assert_close(info_nce(rows, labels, denominator=denominator).item(), expected, rtol=1e-7, atol=0)


@pytest.mark.parametrize("denominator", ["positive_and_negatives", "negatives"])
def test_groups_are_compared_on_their_own_and_the_mean_is_over_all_pairs(denominator):
    """Groups 5 and 7 have 2 + 2 and 2 + 6 ordered pairs; group 9 has no second label, so it has no pair."""
    rng = torch.Generator().manual_seed(0)
    vectors = torch.randn(11, 5, generator=rng, dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1])
    groups = torch.tensor([5, 5, 5, 5, 7, 7, 7, 7, 7, 9, 9])
    parts = [
        (4, pair_by_pair(vectors[:4], labels[:4], 0.2, denominator == "positive_and_negatives")),
        (8, pair_by_pair(vectors[4:9], labels[4:9], 0.2, denominator == "positive_and_negatives")),
    ]
    expected = sum(n * mean for n, mean in parts) / 12
    order = torch.randperm(11, generator=rng)
    actual = info_nce(vectors[order], labels[order], 0.2, denominator, groups[order])
    torch.testing.assert_close(actual.item(), expected)


@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 0, 0], [5], []])
def test_without_a_positive_pair_or_a_negative_the_loss_is_zero_with_gradient_zero(labels):
    vectors = torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = info_nce(vectors, torch.tensor(labels, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0 and torch.equal(vectors.grad, torch.zeros_like(vectors))


@pytest.mark.parametrize("denominator", ["positive_and_negatives", "negatives"])
def test_finite_at_a_temperature_whose_exponentials_overflow(denominator):
    """e^(1 / 0.001) is beyond every float.

    Anchor 0: its positive is opposite, its negative equal: a gap of 2 / 0.001 = 2000. Anchor 1: a gap of 0.
    """
    vectors = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    loss = info_nce(vectors, torch.tensor([0, 0, 1]), 0.001, denominator)
    loss.backward()
    expected = {"positive_and_negatives": (2000 + math.log(2)) / 2, "negatives": 1000.0}[denominator]
    torch.testing.assert_close(loss.item(), expected, rtol=1e-6, atol=0)
    assert torch.isfinite(vectors.grad).all()


def test_gradient_matches_finite_differences():
    vectors = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: info_nce(v, torch.tensor([0, 0, 1, 1, 1]), 0.3), vectors)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(6), LABELS), "vectors must be"),
        ((TWO_CLUSTERS, LABELS[:5]), "vectors must be"),
        ((TWO_CLUSTERS, LABELS, 0.0), "temperature"),
        ((TWO_CLUSTERS, LABELS, 0.05, "all"), "denominator"),
    ],
)
def test_wrong_arguments_of_info_nce_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        info_nce(*arguments)


def test_masked_mean_is_the_mean_inside_the_mask():
    features = torch.arange(2 * 3 * 2 * 2, dtype=torch.float64).reshape(2, 3, 2, 2)
    mask = torch.tensor([[[1, 0], [0, 1]], [[0, 0], [1, 0]]], dtype=torch.uint8)
    vectors, present = masked_mean(features, mask)
    assert present.tolist() == [True, True]
    assert vectors.tolist() == [[1.5, 5.5, 9.5], [14.0, 18.0, 22.0]]


def test_an_empty_mask_is_marked_absent_and_gives_finite_gradients():
    features = torch.ones(2, 3, 4, 4, requires_grad=True)
    mask = torch.zeros(2, 4, 4)
    mask[0, 1, 1] = 1
    vectors, present = masked_mean(features, mask)
    vectors.sum().backward()
    assert present.tolist() == [True, False] and not vectors[1].any()
    assert torch.isfinite(features.grad).all() and not features.grad[1].any()


def test_masked_mean_of_half_precision_does_not_overflow():
    """300 x 300 pixels of 8 sum to 720,000; the largest float16 is 65,504."""
    vectors, _ = masked_mean(torch.full((1, 1, 300, 300), 8.0, dtype=torch.float16), torch.ones(1, 300, 300))
    assert vectors.item() == 8


def test_wrong_shapes_of_masked_mean_are_rejected():
    with pytest.raises(ValueError, match="mask must be"):
        masked_mean(torch.ones(2, 3, 4, 4), torch.ones(2, 4, 5))


def test_pooled_levels_are_the_means_of_the_maps_resized_to_the_region():
    rng = torch.Generator().manual_seed(0)
    sizes = [(24, 18), (12, 9), (5, 7), (30, 40)]  # of the same size, half, another shape, larger than the region
    levels = [torch.randn(3, 2, *size, generator=rng, dtype=torch.float64) for size in sizes]
    region = (torch.rand(3, 24, 18, generator=rng) > 0.8).double()
    region[1] = 0  # has no vector
    pooled = pool_levels(levels, region)
    resized = torch.cat([F.interpolate(level, (24, 18), mode="bilinear") for level in levels], dim=1)
    expected = [resized[image][:, region[image].bool()].mean(dim=1) for image in (0, 2)]
    assert torch.allclose(pooled, torch.stack(expected), atol=1e-12)


def test_regions_are_structures_and_the_ring_around_them():
    """One of two images has one pixel of structure 1, whose ring of width 1 has four pixels; the other has none."""
    features = torch.arange(50.0).reshape(2, 1, 5, 5)
    label = torch.zeros(2, 2, 5, 5, dtype=torch.uint8)
    label[0, 1, 2, 2] = 1
    vectors, kinds, images = region_embeddings(features, label, 1)
    assert (
        kinds.tolist() == [1, 2]
        and images.tolist() == [0, 0]
        and vectors.flatten().tolist() == [12, (7 + 11 + 13 + 17) / 4]
    )
