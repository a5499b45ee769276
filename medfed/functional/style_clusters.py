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
) -> tuple[Tensor, Tensor, Tensor]:
    """Summarise the styles of a site's images as one style in which rare kinds of images count as much as common ones.

    A style is the mean and the standard deviation of each of C feature channels. FINCH clustering groups the images by
    their styles. The style of a cluster is the mean and the standard deviation over all pixels of its images. The mean
    of the site's style is the average of the clusters' means; `spread` says how the standard deviation of the site's
    style is computed. Implements eq. 1-2 of FISC (Nguyen et al., 2024, https://arxiv.org/abs/2410.22622).

    With a single cluster, the result is the mean and the standard deviation over all pixels of all images of the site,
    which CCST calls the overall style. The standard deviation differs slightly if `std` was computed with the divisor
    n - 1 instead of n, for n pixels per image.

    Args:
        mean: (N, C), the channel means of N images.
        std: (N, C), the channel standard deviations of the same images.
        partition: which of FINCH's partitions to use: "first" (the finest), "last" (the coarsest), or "none" to treat
            all images as one cluster.
        spread: how the standard deviation is computed. "mixture", as in the released code, takes the standard deviation
            of a mixture of all clusters with equal weights, which grows with the distance between the clusters' means.
            "mean" takes the average of the clusters' standard deviations. Any word other than "mean" has the effect of
            "mixture".

    Returns:
        mean (C,) and std (C,), both float64, and the cluster of each image, (N,) int64 from 0.

    Raises:
        ValueError: if `partition` is none of the three words.
    """
    mean, std = mean.double(), std.double()
    label = _partition_styles(torch.cat([mean, std], dim=1), partition)
    styles = [mixture_mean_std(mean[label == k], std[label == k]) for k in range(int(label.max()) + 1)]
    means, stds = (torch.stack(parts) for parts in zip(*styles, strict=True))
    if spread == "mean":
        return means.mean(dim=0), stds.mean(dim=0), label
    return *mixture_mean_std(means, stds), label


def mixture_mean_std(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation of the mixture of N distributions, all with the same weight.

    The mixture is computed separately for each of C channels.

    Args:
        mean: (N, C), the means of the distributions.
        std: (N, C), the standard deviations of the distributions.

    Returns:
        mean (C,) and std (C,) of the mixture. std is the square root of (mean of the N variances + variance of the N
        means).
    """
    within, between = std.square().mean(dim=0), mean.var(dim=0, correction=0)
    return mean.mean(dim=0), (within + between).sqrt()


def interpolation_style(
    mean: Tensor, std: Tensor, partition: Partition = "last", median: Median = "middle"
) -> tuple[Tensor, Tensor, int]:
    """Combine the styles of all sites into one common style, which FISC calls the interpolation style.

    A style is the mean and the standard deviation of each of C feature channels. FINCH clustering groups the sites by
    their styles, and each cluster is represented by the mean of its styles. The result is the element-wise median of
    these cluster means. For three sites or fewer FINCH always finds one cluster, so the result is the mean style of the
    sites. Implements eq. 3 of FISC (Nguyen et al., 2024, https://arxiv.org/abs/2410.22622).

    Args:
        mean: (N, C), the channel means of the styles of N sites.
        std: (N, C), the channel standard deviations of the styles of N sites.
        partition: which of FINCH's partitions to use: "first" (the finest), "last" (the coarsest), or "none" to treat
            all sites as one cluster.
        median: the median of an even number of values. "middle" is the mean of the two middle values. "lower" is the
            smaller of the two, as in `torch.median` and in the released code.

    Returns:
        mean (C,) and std (C,), both float64, and the number of clusters.

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
