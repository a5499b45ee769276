"""Class prototypes (mean embeddings) of several sites, and losses that pull embeddings towards them (FPL).

Implements Huang et al., "Rethinking Federated Learning with Domain Shift: A Prototype View", CVPR 2023,
https://openaccess.thecvf.com/content/CVPR2023/html/Huang_Rethinking_Federated_Learning_With_Domain_Shift_A_Prototype_View_CVPR_2023_paper.html.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from medfed.functional.clustering import cluster_means, finch_partition
from medfed.functional.contrastive import region_means
from medfed.functional.regions import background_ring


def region_embeddings(features: Tensor, label: Tensor, ring_width: int) -> tuple[Tensor, Tensor]:
    """Return the mean feature of each structure and of the background around the structures, for each image.

    Args:
        features: (B, D, H, W), in the height and width of the masks.
        label: (B, S, H, W), masks of S structures, 0 outside; structures may overlap.
        ring_width: width in pixels of the ring around all structures together that counts as background.

    Returns:
        A pair: the embeddings (R, D) of all regions that are not empty, and (R,) int64, what each embedding shows:
        0..S-1 the structure, S the background. R may be 0.
    """
    inside = label.bool()
    around = background_ring(inside.any(dim=1, keepdim=True), ring_width)
    masks = torch.cat([inside, around.to(inside)], dim=1)
    vectors, present = region_means(features, masks)
    classes = torch.arange(masks.shape[1], device=vectors.device).repeat(len(masks))
    return vectors[present], classes[present]


def class_sums(vectors: Tensor, classes: Tensor) -> dict[int, tuple[Tensor, int]]:
    """Return the sum and the number of the vectors of each class.

    Args:
        vectors: (N, D), floating point.
        classes: (N,), integers, the class of each vector.

    Returns:
        By class number: the sum (D,) in float64 without a gradient, and the number of vectors. Classes without a vector
        are missing.
    """
    vectors = vectors.detach().double()
    return {k: (vectors[classes == k].sum(dim=0), int((classes == k).sum())) for k in classes.unique().tolist()}


def cluster_prototypes(prototypes: Sequence[Tensor]) -> Tensor | None:
    """Cluster the sites' prototypes of one class, and return the mean of each cluster (FPL, eq. 3-4).

    The clusters are the coarsest partition of FINCH. Up to three sites always form one cluster.

    Args:
        prototypes: one tensor (D,) per site. Prototypes of exactly zero have no direction and are left out.

    Returns:
        (M, D), the cluster prototypes; None if all prototypes are zero or none is given.
    """
    nonzero = [prototype for prototype in prototypes if bool(prototype.any())]
    if not nonzero:
        return None
    rows = torch.stack(nonzero)
    return cluster_means(rows, finch_partition(rows, "last"))                  # eq. 3-4


def prototype_contrastive_loss(
    vectors: Tensor, classes: Tensor, prototypes: Tensor, prototype_classes: Tensor, temperature: float
) -> Tensor:
    """Return the InfoNCE loss of embeddings against cluster prototypes (FPL, eq. 7).

        L_i = -log( sum_{c of the own class} e^s_ic / sum_{all c} e^s_ic ),   s = cosine similarity / temperature

    All clusters of the own class form one positive term, so an embedding has to be close to only one of them.

    Args:
        vectors: (N, D), the embeddings.
        classes: (N,), integers, the class of each embedding.
        prototypes: (M, D), the cluster prototypes of all classes.
        prototype_classes: (M,), integers, the class of each prototype.
        temperature: above 0.

    Returns:
        Scalar, at least 0: the mean over the embeddings whose class has a prototype. 0 with gradient 0 if there is no
        such embedding; 0 if all prototypes belong to that class.

    Raises:
        ValueError: if the temperature is not above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    own = classes[:, None] == prototype_classes[None, :]
    known = own.any(dim=1)
    if not bool(known.any()):
        return vectors.sum() * 0
    own, vectors = own[known], vectors[known]
    scores = F.normalize(vectors, dim=1) @ F.normalize(prototypes, dim=1).T / temperature
    return (scores.logsumexp(dim=1) - scores.masked_fill(~own, -torch.inf).logsumexp(dim=1)).mean()  # eq. 7


def prototype_distance_loss(
    vectors: Tensor, classes: Tensor, prototypes: Tensor, prototype_classes: Tensor
) -> Tensor:
    """Return the mean squared distance of embeddings to the unbiased prototype of their class (FPL, eq. 9-10).

    The unbiased prototype is the mean over the class's cluster prototypes, so a cluster of many sites counts as much as
    a cluster of one site.

    Args:
        vectors: (N, D), the embeddings.
        classes: (N,), integers, the class of each embedding.
        prototypes: (M, D), the cluster prototypes of all classes.
        prototype_classes: (M,), integers, the class of each prototype.

    Returns:
        Scalar, at least 0: the mean squared difference over the D features and the embeddings whose class has a
        prototype. 0 with gradient 0 if there is no such embedding.
    """
    own = (classes[:, None] == prototype_classes[None, :]).to(vectors)
    n_clusters = own.sum(dim=1, keepdim=True)
    known = n_clusters[:, 0] > 0
    if not bool(known.any()):
        return vectors.sum() * 0
    unbiased = own @ prototypes.to(vectors) / n_clusters.clamp(min=1)          # eq. 9
    return F.mse_loss(vectors[known], unbiased[known])                         # eq. 10
