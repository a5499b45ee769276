"""Clusters without a chosen number (FINCH), and points that lie far apart (the seeding of k-means++)."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

TIE_TOLERANCE = 1e-12  # cosines closer than this are equal: float64 leaves about 1e-15, and duplicates must tie
MAX_BLOCK_ENTRIES = 2**23          # numbers of the similarity matrix at a time, 64 MB


def finch(vectors: Tensor) -> list[Tensor]:
    """The first-neighbour hierarchy of clusters (Sarfraz et al., CVPR 2019, eq. 1 and algorithm 1).

    Each vector is joined to its nearest other one, by cosine; what hangs together is a cluster. Clusters are replaced
    by the means of their vectors, and joined again, until one is left. No parameter, no draw. Of two equally near
    vectors the first counts.

    Two or three vectors always are one cluster, and a few more often are: of random ones around a common mean, as
    styles lie, 4 in 89 of 100 draws, 5 in 77, 6 in 64, 10 in 33; around 0, in many dimensions, 80, 57, 37 and 5.

    Args:
        vectors: (N, D), N at least 1, finite, none of them zero. Computed in float64, 64 MB of similarities at a time.

    Returns:
        The partitions, finest first, each (N,) int64 on the CPU: the number of every vector's cluster, where clusters
        are numbered by their first member. A partition of one cluster is left out unless it is the only one. The order
        of the vectors changes nothing but numbers and ties. The means are of the vectors as they come, as in the paper,
        so the length of a vector has no say in the first partition, but has in the next. A mean of exactly zero, which
        has no direction, counts as at right angles to all others.

    Raises:
        ValueError: if the vectors are not as above; it names the rows.
    """
    _check_vectors(vectors)
    values = vectors.detach().to("cpu", torch.float64)
    labels = torch.arange(len(values))
    partitions: list[Tensor] = []
    while labels.max() > 0 or not partitions:
        joined = _connected_components(_first_neighbours(cluster_means(values, labels)))
        labels = _number_by_first_member(joined[labels])
        partitions.append(labels)
    return partitions[:-1] or partitions


def finch_partition(vectors: Tensor, partition: str = "last") -> Tensor:
    """The "first" (finest) or "last" (coarsest) partition of `finch`: (N,) int64; ValueError for another word."""
    if partition not in ("first", "last"):
        raise ValueError(f'partition must be "first" or "last", got "{partition}"')
    return finch(vectors)[0 if partition == "first" else -1]


def cluster_means(vectors: Tensor, labels: Tensor) -> Tensor:
    """(K, D), the mean of each cluster's vectors, summed in float64, in the type of `vectors`.

    Args:
        vectors: (N, D), floating point.
        labels: (N,), integers 0..K-1, each of them in use.

    Raises:
        ValueError: if the labels do not fit the vectors, or leave a number out.
    """
    if vectors.ndim != 2 or labels.shape != vectors.shape[:1]:
        raise ValueError(f"vectors (N, D) need labels (N,), got {tuple(vectors.shape)} and {tuple(labels.shape)}")
    labels = labels.to(vectors.device)
    sizes = labels.bincount()
    if not sizes.all():
        raise ValueError(
            f"labels must use every number from 0 to {len(sizes) - 1}, got none of {_format_rows(sizes == 0)}"
        )
    sums = vectors.new_zeros(len(sizes), vectors.shape[1], dtype=torch.float64)
    return (sums.index_add_(0, labels, vectors.double()) / sizes[:, None]).to(vectors.dtype)


def kmeans_plus_plus(points: Tensor, k: int, rng: torch.Generator) -> Tensor:
    """Choose k points that lie far apart: the seeding of k-means++ (Arthur & Vassilvitskii, SODA 2007), nothing after.

    The first is drawn uniformly, each further one with a chance proportional to its squared distance to the nearest
    point chosen so far. A duplicate of a chosen point is therefore never drawn while a distinct point is left; once
    there is none, the draw is uniform over those not chosen. No point is chosen twice.

    Args:
        points: (N, D), finite.
        k: how many, 1..N.
        rng: a CPU generator; distances are computed on the CPU too, in float64.

    Returns:
        (k,) int64, on the CPU, in the order of the draws.

    Raises:
        ValueError: if k is outside 1..N, or the points are not as above.
    """
    _check_finite(points, "points")
    if not 1 <= k <= len(points):
        raise ValueError(f"k must be in 1..{len(points)}, the number of points, got {k}")
    values = points.detach().to("cpu", torch.float64)
    chosen = [int(torch.randint(len(values), (), generator=rng))]
    nearest = torch.full((len(values),), torch.inf, dtype=torch.float64)
    free = torch.ones(len(values), dtype=torch.float64)
    while len(chosen) < k:
        free[chosen[-1]] = 0
        nearest = nearest.minimum((values - values[chosen[-1]]).square().sum(dim=1))
        chances = nearest * free if (nearest * free).any() else free
        chosen.append(int(chances.multinomial(1, generator=rng)))
    return torch.tensor(chosen)


def _first_neighbours(vectors: Tensor) -> Tensor:
    """(N,), for each vector the other one of the largest cosine, the first of equals; a lone vector has itself."""
    directions = _unit_vectors(vectors)
    rows = max(1, MAX_BLOCK_ENTRIES // len(vectors))
    nearest = []
    for start in range(0, len(vectors), rows):
        cosines = directions[start : start + rows] @ directions.T
        cosines.diagonal(offset=start).fill_(-torch.inf)
        close = cosines >= cosines.amax(dim=1, keepdim=True) - TIE_TOLERANCE
        nearest.append(close.to(torch.uint8).argmax(dim=1))                    # the first of the largest
    return torch.cat(nearest)


def _unit_vectors(vectors: Tensor) -> Tensor:
    """Unit vectors, also of lengths whose square leaves the range of floats; zero stays zero."""
    largest = vectors.abs().amax(dim=1, keepdim=True)
    vectors = vectors / torch.where(largest > 0, largest, 1)
    length = vectors.norm(dim=1, keepdim=True)
    return vectors / torch.where(length > 0, length, 1)


def _connected_components(neighbours: Tensor) -> Tensor:
    """The connected components of i - neighbour(i); two that share a neighbour hang together through it (eq. 1)."""
    n = len(neighbours)
    graph = csr_matrix((np.ones(n), (np.arange(n), neighbours.numpy())), shape=(n, n))
    return torch.from_numpy(connected_components(graph, directed=False)[1].astype(np.int64))


def _number_by_first_member(labels: Tensor) -> Tensor:
    _, first, inverse = np.unique(labels.numpy(), return_index=True, return_inverse=True)
    return torch.from_numpy(first.argsort().argsort()[inverse])


def _check_vectors(vectors: Tensor) -> None:
    _check_finite(vectors, "vectors")
    if vectors.shape[0] == 0:
        raise ValueError("vectors must be at least one, got none")
    zero = (vectors == 0).all(dim=1)
    if zero.any():
        raise ValueError(f"vectors must not be zero, which has no direction; zero in rows {_format_rows(zero)}")


def _check_finite(vectors: Tensor, name: str) -> None:
    if vectors.ndim != 2 or vectors.is_complex():
        raise ValueError(f"{name} must be real, (N, D), got {vectors.dtype} {tuple(vectors.shape)}")
    strange = ~vectors.isfinite().all(dim=1)
    if strange.any():
        raise ValueError(f"{name} must be finite; NaN or infinite in rows {_format_rows(strange)}")


def _format_rows(wrong: Tensor) -> str:
    """The numbers of the first ten True."""
    rows = wrong.nonzero()[:, 0].tolist()
    return ", ".join(map(str, rows[:10])) + (f" and {len(rows) - 10} more" if len(rows) > 10 else "")
