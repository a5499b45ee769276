"""Summarise many styles as one: the styles of a site's images, and the styles of all sites (FISC).

Implements section 2.2 of Nguyen et al., "FISC: Federated Domain Generalization via Interpolative Style Transfer and
Contrastive Learning", 2024, https://arxiv.org/abs/2410.22622. A style is the mean and standard deviation of feature
channels.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from medfed.functional.clustering import finch_partition

Partition = Literal["none", "first", "last"]
Spread = Literal["mixture", "mean"]
Median = Literal["middle", "lower"]


def clustered_site_style(
    mean: Tensor, std: Tensor, partition: Partition = "last", spread: Spread = "mixture"
) -> tuple[Tensor, Tensor, int]:
    """Return the average over the style clusters of a site's images, so that rare styles count as much as common ones.

    FINCH clusters the images by their styles (FISC, eq. 1). A cluster's style is the mean and standard deviation over
    all pixels of its images' features (eq. 2); the site's style is the average over its clusters. A plain average of
    standard deviations ignores how far apart the means of the clusters are; "mixture", as in the released code,
    includes it. For one cluster "mixture" is the style over all pixels (the overall style of CCST), up to the factor
    n / (n - 1) in the variances of the single images.

    Args:
        mean: (N, C), the channel means of N images.
        std: (N, C), their channel standard deviations.
        partition: "first" (finest) or "last" (coarsest) partition of FINCH; "none" treats all images as one cluster.
        spread: how the clusters' standard deviations are combined: "mixture" (standard deviation of the equal mixture
            of the clusters) or "mean".

    Returns:
        mean (C,) and std (C,), float64, and the number of clusters.

    Raises:
        ValueError: if `partition` is another word.
    """
    mean, std = mean.double(), std.double()
    label = _partition_styles(torch.cat([mean, std], dim=1), partition)
    styles = [mixture_mean_std(mean[label == k], std[label == k]) for k in range(int(label.max()) + 1)]
    means, stds = (torch.stack(parts) for parts in zip(*styles, strict=True))
    if spread == "mean":
        return means.mean(dim=0), stds.mean(dim=0), len(means)
    return *mixture_mean_std(means, stds), len(means)


def mixture_mean_std(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation of an equal mixture of N distributions, for each channel.

    Args:
        mean: (N, C), the means of the distributions.
        std: (N, C), their standard deviations.

    Returns:
        mean (C,) and std (C,); the variance is the mean of the variances plus the variance of the means.
    """
    within, between = std.square().mean(dim=0), mean.var(dim=0, correction=0)
    return mean.mean(dim=0), (within + between).sqrt()


def interpolation_style(
    mean: Tensor, std: Tensor, partition: Partition = "last", median: Median = "middle"
) -> tuple[Tensor, Tensor, int]:
    """Return FISC's interpolation style: the element-wise median over style clusters of the sites.

    FINCH clusters the sites by their styles (FISC, eq. 3); each cluster is represented by the mean of its styles. For
    three sites or fewer FINCH always finds one cluster, so the result is the mean style of the sites.

    Args:
        mean: (N, C), the channel means of N sites' styles.
        std: (N, C), their channel standard deviations.
        partition: "first" (finest) or "last" (coarsest) partition of FINCH; "none" treats all sites as one cluster.
        median: for an even number of clusters, "middle" is the mean of the two middle values and "lower" the lower one
            (as `torch.median` and the released code).

    Returns:
        mean (C,) and std (C,), float64, and the number of clusters.

    Raises:
        ValueError: if `partition` is another word.
    """
    styles = torch.cat([mean, std], dim=1).double()
    label = _partition_styles(styles, partition)
    means = torch.stack([styles[label == k].mean(dim=0) for k in range(int(label.max()) + 1)])
    common = means.median(dim=0).values if median == "lower" else means.quantile(0.5, dim=0)
    common_mean, common_std = common.chunk(2)
    return common_mean, common_std, len(means)


def _partition_styles(styles: Tensor, partition: Partition) -> Tensor:
    """Return (N,) int64: the cluster of each style (N, D); 0 for all if the partition is "none"."""
    if partition not in get_args(Partition):
        raise ValueError(f"partition must be one of {', '.join(get_args(Partition))}, got '{partition}'")
    return torch.zeros(len(styles), dtype=torch.int64) if partition == "none" else finch_partition(styles, partition)
