import math

import pytest
import torch

from medfed.methods.fpl import (
    cluster_prototypes,
    prototype_contrastive_loss,
    prototype_distance_loss,
)


def t(*rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_an_embedding_equal_to_its_prototype_and_orthogonal_to_the_others_has_loss_zero():
    """-log( e^50 / (e^50 + 2) ) = 2 e^-50 and a distance of 0."""
    z, prototypes, of = t([2.0, 0, 0]), t([2.0, 0, 0], [0, 1, 0], [0, 0, 1]), torch.tensor([0, 1, 2])
    assert float(prototype_contrastive_loss(z, torch.tensor([0]), prototypes, of, 0.02)) == pytest.approx(0, abs=1e-12)
    assert float(prototype_distance_loss(z, torch.tensor([0]), prototypes, of)) == 0


def test_contrastive_loss_by_hand():
    """Class 0 has two clusters, at cosines 1 and 0, class 1 one at 0.6; tau is 0.5.

    So it is -log((e^2 + e^0) / (e^2 + e^0 + e^1.2)).
    """
    z, prototypes, of = t([3.0, 0]), t([1.0, 0], [0, 5], [0.6, 0.8]), torch.tensor([0, 0, 1])
    both = math.exp(2) + 1
    result = prototype_contrastive_loss(z, torch.tensor([0]), prototypes, of, 0.5)
    assert float(result) == pytest.approx(-math.log(both / (both + math.exp(1.2))))


def test_distance_loss_is_to_the_mean_of_the_cluster_prototypes():
    """Clusters (0, 0) and (4, 2): their mean is (2, 1); from (2, 4) the mean of 0 and 9."""
    result = prototype_distance_loss(
        t([2.0, 4]), torch.tensor([7]), t([0.0, 0], [4, 2], [9, 9]), torch.tensor([7, 7, 1])
    )
    assert float(result) == pytest.approx(4.5)


def test_the_sum_over_features_is_the_papers_and_the_mean_over_images_stays():
    """The mean prototype is (2, 1): (2, 4) is at 0 + 9, and (3, 3) at 1 + 4; the mean of 9 and 5 is 7."""
    prototypes, of = t([0.0, 0], [4, 2], [9, 9]), torch.tensor([7, 7, 1])
    rows, kinds = t([2.0, 4], [3, 3]), torch.tensor([7, 7])
    assert float(prototype_distance_loss(rows, kinds, prototypes, of, "sum")) == pytest.approx(7)
    assert float(prototype_distance_loss(rows, kinds, prototypes, of)) == pytest.approx(3.5)


def test_classes_without_a_prototype_are_left_out():
    z, kinds = t([1.0, 0], [0, 1.0]), torch.tensor([0, 5])
    prototypes, of = t([1.0, 1.0], [0, 1.0]), torch.tensor([0, 1])
    for loss in (lambda *a: prototype_contrastive_loss(*a, 0.1), prototype_distance_loss):
        assert torch.equal(loss(z, kinds, prototypes, of), loss(z[:1], kinds[:1], prototypes, of))
        z_free = z.clone().requires_grad_()
        nothing = loss(z_free, torch.tensor([8, 9]), prototypes, of)
        nothing.backward()
        assert float(nothing.detach()) == 0 and z_free.grad.abs().sum() == 0


def test_with_prototypes_of_one_class_the_loss_is_zero():
    prototypes = t([0.0, 1], [1, 0])
    assert float(prototype_contrastive_loss(t([1.0, 2]), torch.tensor([0]), prototypes, torch.tensor([0, 0]), 0.1)) == 0


def test_three_sites_are_one_cluster_and_two_pairs_are_two():
    rows = t([1.0, 0.1], [1, 0.2], [1, 0.3])
    assert torch.allclose(cluster_prototypes(list(rows)), rows.mean(dim=0, keepdim=True))
    pairs = t([1.0, 0.1], [1, 0.2], [-0.1, 1], [-0.2, 1])
    assert torch.allclose(cluster_prototypes(list(pairs)), torch.stack([pairs[:2].mean(dim=0), pairs[2:].mean(dim=0)]))
    assert cluster_prototypes([pairs[0]]).equal(pairs[:1]), "a lone site's own"


def test_a_prototype_of_zero_is_left_out():
    assert cluster_prototypes([t(0.0, 0), t(1.0, 2)]).equal(t([1.0, 2])) and cluster_prototypes([t(0.0, 0)]) is None
