"""Classes told by the mean of their embeddings (prototypes), and how far an embedding is from its own (FPL)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from medfed.functional.clustering import cluster_means, finch_partition
from medfed.functional.contrastive import region_means
from medfed.functional.regions import background_ring


def region_embeddings(features: Tensor, label: Tensor, ring_width: int) -> tuple[Tensor, Tensor]:
    """The mean feature of each structure, and of the background beside them, of each image where they are.

    Args:
        features: (B, D, H, W), of the masks' height and width.
        label: (B, S, H, W), masks of S structures, which may overlap.
        ring_width: of the background, in pixels around all structures together.

    Returns:
        (R, D), and what each is of, (R,) int64: 0..S-1 the structures, S the background. R may be 0.
    """
    inside = label.bool()
    around = background_ring(inside.any(dim=1, keepdim=True), ring_width)
    masks = torch.cat([inside, around.to(inside)], dim=1)
    vectors, there = region_means(features, masks)
    kinds = torch.arange(masks.shape[1], device=vectors.device).repeat(len(masks))
    return vectors[there], kinds[there]


def class_sums(vectors: Tensor, kinds: Tensor) -> dict[int, tuple[Tensor, int]]:
    """Of vectors (N, D) of some kinds (N,): the sum (D,), in float64, and the number of those of each kind."""
    vectors = vectors.detach().double()
    return {k: (vectors[kinds == k].sum(dim=0), int((kinds == k).sum())) for k in kinds.unique().tolist()}


def cluster_prototypes(prototypes: Sequence[Tensor]) -> Tensor | None:
    """One class's prototypes of several sites, each (D,), to the means of their clusters, (M, D) (FPL, eq. 3-4).

    Clusters are FINCH's last partition: of three sites or fewer always one. A prototype of exactly zero has no
    direction and is left out; None if no other is there.
    """
    told = [one for one in prototypes if bool(one.any())]
    if not told:
        return None
    rows = torch.stack(told)
    return cluster_means(rows, finch_partition(rows, "last"))


def prototype_contrastive_loss(
    vectors: Tensor, kinds: Tensor, prototypes: Tensor, of: Tensor, temperature: float
) -> Tensor:
    """InfoNCE of embeddings against cluster prototypes (FPL, eq. 7): own class's against all.

        L_i = -log( sum_{c of own class} e^s_ic / sum_c e^s_ic ),   s = cosine / temperature

    All clusters of the own class are positive together: an embedding need be near one of them only.

    Args:
        vectors: (N, D); kinds: (N,), their classes.
        prototypes: (M, D); of: (M,), their classes.
        temperature: above 0.

    Returns:
        The mean over the embeddings whose class has a prototype, a scalar; of none, 0, joined to the graph. It is 0
        where all prototypes are of that class, as there is nothing to be told from.

    Raises:
        ValueError: if the temperature is not above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    own = kinds[:, None] == of[None, :]
    known = own.any(dim=1)
    if not bool(known.any()):
        return vectors.sum() * 0
    own, vectors = own[known], vectors[known]
    scores = F.normalize(vectors, dim=1) @ F.normalize(prototypes, dim=1).T / temperature
    return (scores.logsumexp(dim=1) - scores.masked_fill(~own, -torch.inf).logsumexp(dim=1)).mean()


def prototype_distance_loss(vectors: Tensor, kinds: Tensor, prototypes: Tensor, of: Tensor) -> Tensor:
    """Mean squared difference, over numbers, of embeddings to the unbiased prototype of their class (FPL, eq. 9-10).

    The unbiased prototype is the mean over the class's clusters, so that a cluster of many sites counts as one of a
    single site. Args, and embeddings without a prototype, as in `prototype_contrast`.
    """
    own = (kinds[:, None] == of[None, :]).to(vectors)
    n_clusters = own.sum(dim=1, keepdim=True)
    known = n_clusters[:, 0] > 0
    if not bool(known.any()):
        return vectors.sum() * 0
    return F.mse_loss(vectors[known], (own @ prototypes.to(vectors) / n_clusters.clamp(min=1))[known])
