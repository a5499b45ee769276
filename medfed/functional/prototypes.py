"""Class prototypes (mean embeddings) of several sites, and losses that pull embeddings towards them (FPL).

Implements Huang et al., "Rethinking Federated Learning with Domain Shift: A Prototype View", CVPR 2023,
https://openaccess.thecvf.com/content/CVPR2023/html/Huang_Rethinking_Federated_Learning_With_Domain_Shift_A_Prototype_View_CVPR_2023_paper.html.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from medfed.functional.clustering import cluster_means, finch_partition


def class_sums(vectors: Tensor, classes: Tensor) -> dict[int, tuple[Tensor, int]]:
    """Return the sum and the number of the vectors of each class.

    Args:
        vectors: (N, D), floating point.
        classes: (N,), integers.

    Returns:
        By class number: the sum of the class's vectors, (D,) float64 without a gradient, and their number. Classes
        without a vector are missing.
    """
    vectors = vectors.detach().double()
    return {k: (vectors[classes == k].sum(dim=0), int((classes == k).sum())) for k in classes.unique().tolist()}


def cluster_prototypes(prototypes: Sequence[Tensor]) -> Tensor | None:
    """Cluster the sites' prototypes of one class, and return the mean of each cluster.

    A site's prototype is the mean embedding (feature vector) of the class. The clusters are FINCH's coarsest partition,
    so up to three sites always form one cluster. Implements eq. 4-5 of FPL (Huang et al., CVPR 2023).

    Args:
        prototypes: one tensor (D,) per site. Prototypes of exactly zero have no direction and are left out.

    Returns:
        (M, D), the means of the M clusters, called cluster prototypes. None if no prototype differs from zero.
    """
    nonzero = [prototype for prototype in prototypes if bool(prototype.any())]
    if not nonzero:
        return None
    rows = torch.stack(nonzero)
    return cluster_means(rows, finch_partition(rows, "last"))  # eq. 4-5


def prototype_contrastive_loss(
    vectors: Tensor, classes: Tensor, prototypes: Tensor, prototype_classes: Tensor, temperature: float
) -> Tensor:
    """Return an InfoNCE loss that pulls each embedding towards the cluster prototypes of its own class.

        L_i = -log( sum_{c of the own class} e^s_ic / sum_{all c} e^s_ic )

    s_ic is the cosine similarity of embedding i and prototype c, divided by the temperature. All prototypes of the own
    class form one positive term, so an embedding has to be close to only one of them. Implements eq. 7-8 of FPL (Huang
    et al., CVPR 2023).

    Args:
        vectors: (N, D), the embeddings.
        classes: (N,), integers, the class of each embedding.
        prototypes: (M, D), the cluster prototypes of all classes (see `cluster_prototypes`).
        prototype_classes: (M,), integers, the class of each prototype.
        temperature: divisor of the cosine similarities, above 0.

    Returns:
        Scalar, at least 0: the mean of L_i over the embeddings whose class has a prototype; 0 with gradient 0 if there
        is no such embedding. L_i is 0 if all prototypes belong to the class of embedding i.

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
    return (scores.logsumexp(dim=1) - scores.masked_fill(~own, -torch.inf).logsumexp(dim=1)).mean()  # eq. 7-8


def prototype_distance_loss(
    vectors: Tensor,
    classes: Tensor,
    prototypes: Tensor,
    prototype_classes: Tensor,
    over_features: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """Return the squared difference between the embeddings and the unbiased prototypes of their classes.

    The unbiased prototype of a class is the mean of its cluster prototypes: a cluster of many sites counts as much as a
    cluster of one site. Implements eq. 6 and 10 of FPL (Huang et al., CVPR 2023).

    Args:
        vectors: (N, D), the embeddings.
        classes: (N,), integers, the class of each embedding.
        prototypes: (M, D), the cluster prototypes of all classes (see `cluster_prototypes`).
        prototype_classes: (M,), integers, the class of each prototype.
        over_features: "sum" adds the squared differences of the D features, as eq. 10 says; "mean" divides the sum by
            D, as the released code does.

    Returns:
        Scalar, at least 0, averaged over the embeddings whose class has a prototype; 0 with gradient 0 if there is no
        such embedding.
    """
    own = (classes[:, None] == prototype_classes[None, :]).to(vectors)
    n_clusters = own.sum(dim=1, keepdim=True)
    known = n_clusters[:, 0] > 0
    if not bool(known.any()):
        return vectors.sum() * 0
    unbiased = own @ prototypes.to(vectors) / n_clusters.clamp(min=1)  # eq. 6
    mean = F.mse_loss(vectors[known], unbiased[known])  # eq. 10
    return mean * vectors.shape[1] if over_features == "sum" else mean
