"""One style for many: that of a site from those of its images, and of a federation from those of its sites (FISC)."""

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
    """The average of the styles of the clusters of a site's images (FISC, section 3.2), so that rare looks count.

    A cluster's style is mean and deviation over all pixels of its images' features; clusters are FINCH's of the images'
    own styles. The average of deviations leaves out how far the clusters' means lie apart; "mixture", as in the public
    code, has it in: for one cluster that is the style of all pixels (CCST's overall style), up to the n / (n - 1) of
    the images' own variances.

    Args:
        mean, std: (N, C), a row an image.
        partition: "first" (finest) or "last" of FINCH; "none" takes all images for one cluster.
        spread: "mixture", or "mean" of the clusters' deviations.

    Returns:
        mean (C,), std (C,), float64, and the number of clusters.
    """
    mean, std = mean.double(), std.double()
    label = _partition_styles(torch.cat([mean, std], dim=1), partition)
    styles = [mixture_mean_std(mean[label == k], std[label == k]) for k in range(int(label.max()) + 1)]
    means, stds = (torch.stack(one) for one in zip(*styles, strict=True))
    if spread == "mean":
        return means.mean(dim=0), stds.mean(dim=0), len(means)
    return *mixture_mean_std(means, stds), len(means)


def mixture_mean_std(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation (C,) of an equal mixture of parts with these means and deviations (N, C)."""
    within, between = std.square().mean(dim=0), mean.var(dim=0, correction=0)
    return mean.mean(dim=0), (within + between).sqrt()


def interpolation_style(
    mean: Tensor, std: Tensor, partition: Partition = "last", median: Median = "middle"
) -> tuple[Tensor, Tensor, int]:
    """The interpolation style: the elementwise median over clusters of sites, of the mean style in each (FISC, 3.3).

    With three sites or fewer FINCH finds one cluster, always: then this is the mean style of the sites.

    Args:
        mean, std: (N, C), a row a site.
        partition: as in `site_style`.
        median: of an even number of clusters the mean of the two in the "middle", or the "lower" (torch's, as
            released).

    Returns:
        mean (C,), std (C,), float64, and the number of clusters.
    """
    styles = torch.cat([mean, std], dim=1).double()
    label = _partition_styles(styles, partition)
    means = torch.stack([styles[label == k].mean(dim=0) for k in range(int(label.max()) + 1)])
    common = means.median(dim=0).values if median == "lower" else means.quantile(0.5, dim=0)
    common_mean, common_std = common.chunk(2)
    return common_mean, common_std, len(means)


def _partition_styles(styles: Tensor, partition: Partition) -> Tensor:
    if partition not in get_args(Partition):
        raise ValueError(f"partition must be one of {', '.join(get_args(Partition))}, got '{partition}'")
    return torch.zeros(len(styles), dtype=torch.int64) if partition == "none" else finch_partition(styles, partition)
