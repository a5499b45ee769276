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

    Implements eq. 1-2 of FISC: FINCH clusters the images by their styles, `mean` and `std` (N, C); the site's mean is
    the average of the clusters' means. `spread` "mixture" takes the standard deviation of a mixture of all clusters
    with equal weights, as the released code does, which grows with the distance between the clusters; "mean" averages
    the clusters' standard deviations. With a single cluster, the result is CCST's overall style.

    Returns mean (C,) and std (C,), both float64, and the cluster of each image, (N,) int64 from 0.
    """
    mean, std = mean.double(), std.double()
    label = _partition_styles(torch.cat([mean, std], dim=1), partition)
    styles = [mixture_mean_std(mean[label == k], std[label == k]) for k in range(int(label.max()) + 1)]
    means, stds = (torch.stack(parts) for parts in zip(*styles, strict=True))
    if spread == "mean":
        return means.mean(dim=0), stds.mean(dim=0), label
    return *mixture_mean_std(means, stds), label


def mixture_mean_std(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (C,) and standard deviation (C,) of an evenly weighted mixture of N distributions (N, C)."""
    within, between = std.square().mean(dim=0), mean.var(dim=0, correction=0)
    return mean.mean(dim=0), (within + between).sqrt()


def interpolation_style(
    mean: Tensor, std: Tensor, partition: Partition = "last", median: Median = "middle"
) -> tuple[Tensor, Tensor, int]:
    """Combine the styles of all sites, `mean` and `std` (N, C), into one common style, FISC's interpolation style.

    Implements eq. 3 of FISC: the element-wise median of the means of FINCH's clusters of the styles. Three sites or
    fewer always form one cluster, so the result is their mean style. For an even number of clusters, "middle" is the
    mean of the two middle values, "lower" the smaller of the two, as in `torch.median` and in the released code.

    Returns mean (C,) and std (C,), both float64, and the number of clusters.
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
