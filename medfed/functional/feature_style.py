"""Change the style of feature maps inside a network: shift it to another site's style, extrapolate, mix or perturb it.

A style is the mean and the standard deviation of each channel of a feature map. The functions implement

- StableFDG (shift, exploration, mixing): Park et al., "StableFDG: Style and Attention Based Learning for Federated
  Domain Generalization", NeurIPS 2023, https://arxiv.org/abs/2311.00227;
- MixStyle (mixing): Zhou et al., "Domain Generalization with MixStyle", ICLR 2021, https://arxiv.org/abs/2104.02008;
- DSU (noise): Li et al., "Uncertainty Modeling for Out-of-Distribution Generalization", ICLR 2022,
  https://arxiv.org/abs/2202.03958.

Except in `add_style_noise`, a map's own mean and standard deviation are constants to the gradient, as in the released
code of MixStyle. (In StableFDG's code, they are in the shift only; in exploration and mixing, the gradient also passes
through the statistics that are removed.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from medfed.functional.clustering import kmeans_plus_plus
from medfed.functional.style import channel_mean_std, replace_mean_std

EPSILON = 1e-6  # added to variances under the square root


class SiteStyle(NamedTuple):
    """The mean and the variation of the styles of a site's images, which the method StableFDG shares (eq. 3).

    The styles of R sites together are four tensors (R, C).

    Args:
        mean: (C,), mean over the site's images of the channel means.
        std: (C,), mean over the site's images of the channel standard deviations.
        mean_spread: (C,), standard deviation over the images of the channel means.
        std_spread: (C,), standard deviation over the images of the channel standard deviations.
    """

    mean: Tensor
    std: Tensor
    mean_spread: Tensor
    std_spread: Tensor


def feature_mean_std(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation over the pixels of every channel of every feature map.

    Args:
        features: (B, C, H, W), floating point.

    Returns:
        mean and std, each (B, C), float32 (float64 for float64 features). std is sqrt(variance + 1e-6), so it is never
        0.

    Raises:
        ValueError: if the features are not floating-point maps (B, C, H, W).
    """
    return channel_mean_std(features, EPSILON)


def compute_site_style(means: Tensor, stds: Tensor) -> SiteStyle:
    """Summarise the styles of a site's N images as one site style of 4 C numbers, which StableFDG sends to other sites.

    Implements eq. 2-3 of StableFDG (Park et al., NeurIPS 2023, https://arxiv.org/abs/2311.00227). The variation between
    the images is the standard deviation sqrt(variance + 1e-6), as in the released code; the paper uses the variance.
    The variance is unbiased (divided by N - 1), and 0 for N = 1.

    Args:
        means: (N, C), the channel means of N images, N at least 1, as `feature_mean_std` returns them.
        stds: (N, C), the channel standard deviations of the same images.

    Returns:
        The site style, four tensors (C,), float32, computed in float64.

    Raises:
        ValueError: if `means` or `stds` is not (N, C) with N at least 1, or their shapes differ.
    """
    if means.ndim != 2 or means.shape != stds.shape or len(means) == 0:
        raise ValueError(f"means and stds must both be (N, C), got {tuple(means.shape)} and {tuple(stds.shape)}")
    both = torch.stack([means, stds]).detach().double()  # (2, N, C)
    variance, mean = torch.var_mean(both, dim=1, correction=min(1, len(means) - 1))  # eq. 2
    return SiteStyle(*mean.float(), *(variance + EPSILON).sqrt().float())  # eq. 3


def shift_style(
    features: Tensor, received: SiteStyle, rng: torch.Generator, n_kept: int | None = None, at_random: bool = False
) -> Tensor:
    """Give some samples of a batch a random style near another site's style; the other samples keep their own style.

        mean = mean' + e * mean_spread',  std = max(0, std' + e * std_spread'),  e ~ N(0, 1) per sample and channel

    A prime marks the received style. The samples that keep their style are selected with the seeding of k-means++ on
    (mean, std), so their styles differ much from each other. This is step 2 (selective style shifting) of StableFDG
    (Park et al., NeurIPS 2023, https://arxiv.org/abs/2311.00227). In the released code, k-means++ selects cluster
    centres instead of samples.

    Args:
        features: (B, C, H, W), floating point. If a mean or standard deviation is not finite (training diverged), the
            features are returned unchanged.
        received: the style of another site, four tensors (C,), as `compute_site_style` returns it; or the styles of R
            sites, four tensors (R, C), of which one is drawn for each changed sample.
        rng: a CPU generator.
        n_kept: number of samples that keep their style, 0..B. None keeps B // 2.
        at_random: whether these samples are selected at random instead of with k-means++ (an ablation of the paper).

    Returns:
        (B, C, H, W) in the dtype and order of `features`. Samples that keep their style are returned bit-identical.

    Raises:
        ValueError: if `n_kept` is outside 0..B, or the style has another number of channels.
    """
    own = _style(features)
    if not bool(own.isfinite().all()):
        return features
    n = len(features)
    n_kept = n // 2 if n_kept is None else n_kept
    if not 0 <= n_kept <= n:
        raise ValueError(f"n_kept must be in 0..{n}, the size of the batch, got {n_kept}")
    shifts = torch.ones(n, dtype=torch.bool)
    if at_random:
        shifts[torch.randperm(n, generator=rng)[:n_kept]] = False
    elif n_kept:
        shifts[kmeans_plus_plus(torch.cat([*own], dim=1), n_kept, rng)] = False
    shifted = shifts.nonzero()[:, 0].to(features.device)
    style = _draw_styles(received, len(shifted), own.shape[2], rng).to(own)
    changed = replace_mean_std(features[shifted], own[:, shifted], style)
    return features.index_copy(0, shifted, changed.to(features.dtype))


def explore_styles(features: Tensor, added: Tensor, level: float = 3.0, clamp: bool = True) -> Tensor:
    """Return copies of some samples whose styles are moved further away from the average style of the batch.

        new mean = mean + level * (mean - average mean of the batch)
        new std  = std  + level * (std  - average std of the batch)

    Implements eq. 4-5 (style exploration) of StableFDG (Park et al., NeurIPS 2023, https://arxiv.org/abs/2311.00227).

    Args:
        features: (B, C, H, W), floating point: the batch over which styles are averaged.
        added: (A,) int64, indices of the samples to copy; repeats are allowed.
        level: how far the styles are moved, in multiples of their distance from the average. The paper uses 3.
        clamp: True sets negative new standard deviations to 0. False keeps them, as the released code does; the channel
            is then mirrored. At level 3, this concerns standard deviations below 0.75 of the batch's average.

    Returns:
        (A, C, H, W), the changed copies only, in the dtype of `features`.
    """
    own = _style(features)
    return replace_mean_std(features[added], own[:, added], _extrapolate(own, added, level, clamp)).to(features.dtype)


def mix_styles(features: Tensor, ratio: Tensor, partners: Tensor) -> Tensor:
    """Mix the style of each sample with the style of another sample of the batch (MixStyle).

        mean = ratio * own mean + (1 - ratio) * partner's mean
        std  = ratio * own std  + (1 - ratio) * partner's std

    Args:
        features: (B, C, H, W), floating point, as the result.
        ratio: (B,) in [0, 1], the weight of a sample's own style. 1 returns the sample, up to rounding.
        partners: (B,) int64, a permutation of 0..B-1: the index of each sample's partner.

    Raises:
        ValueError: if ratio or partners is not (B,), or a ratio is outside [0, 1].
    """
    own = _style(features)
    return replace_mean_std(features, own, _interpolate(own, ratio, partners)).to(features.dtype)


def explore_and_mix_styles(
    features: Tensor, added: Tensor, ratio: Tensor, partners: Tensor, level: float = 3.0, clamp: bool = True
) -> Tensor:
    """Append copies with extrapolated styles (`explore_styles`) to a batch, then mix all styles (`mix_styles`).

    These are steps 3-5 (oversampling, exploration and mixing) of StableFDG. The feature maps are normalised only once,
    as in the released code: normalising twice would lose the content of a channel whose extrapolated standard deviation
    is 0. Without `clamp`, signed standard deviations are therefore mixed, so that a negative one of the partner weakens
    or mirrors a channel; by the paper's text, absolute values are mixed. `added` is (A,); `ratio` and `partners` are
    (B + A,); the result, (B + A, C, H, W), is the batch followed by the copies.
    """
    own = _style(features)
    indices = torch.cat([torch.arange(len(features), device=added.device), added])
    style = torch.cat([own, _extrapolate(own, added, level, clamp)], dim=1)
    mixed = _interpolate(style, ratio, partners)
    return replace_mean_std(features[indices], own[:, indices], mixed).to(features.dtype)


def _style(features: Tensor) -> Tensor:
    """Return (2, B, C): mean and standard deviation of every channel, detached from the graph."""
    return torch.stack(feature_mean_std(features.detach()))


def _draw_styles(received: SiteStyle, n: int, n_channels: int, rng: torch.Generator) -> Tensor:
    """Draw n styles around the received one(s): (2, n, C) float64 on the CPU."""
    shapes = {tuple(entry.shape) for entry in received}
    if len(shapes) != 1 or received.mean.ndim not in (1, 2) or received.mean.shape[-1] != n_channels:
        raise ValueError(f"the style must be four tensors ({n_channels},) or (R, {n_channels}), got {sorted(shapes)}")
    sites = torch.stack([torch.atleast_2d(entry) for entry in received]).detach().to("cpu", torch.float64)
    of_site = torch.randint(sites.shape[1], (n,), generator=rng)
    noise = torch.randn(2, n, n_channels, dtype=torch.float64, generator=rng)
    mean, std = sites[:2, of_site] + noise * sites[2:, of_site]
    return torch.stack([mean, std.clamp(min=0)])


def _extrapolate(style: Tensor, added: Tensor, level: float, clamp: bool) -> Tensor:
    """Return (2, A, C): the styles of the samples `added`, moved away from the average of `style` (2, B, C)."""
    mean, std = style[:, added] + level * (style[:, added] - style.mean(dim=1, keepdim=True))  # eq. 4-5
    return torch.stack([mean, std.clamp(min=0) if clamp else std])


def _interpolate(style: Tensor, ratio: Tensor, partners: Tensor) -> Tensor:
    """Mix styles (2, N, C) with those of their partners: (2, N, C)."""
    n = style.shape[1]
    if tuple(ratio.shape) != (n,) or tuple(partners.shape) != (n,):
        raise ValueError(f"ratio and partners must be ({n},), got {tuple(ratio.shape)} and {tuple(partners.shape)}")
    if not bool(((ratio >= 0) & (ratio <= 1)).all()):
        raise ValueError(f"ratio must be in [0, 1], got {ratio.tolist()}")
    ratio = ratio.to(style)[:, None]
    return ratio * style + (1 - ratio) * style[:, partners]


def add_style_noise(features: Tensor, rng: torch.Generator, factor: float = 1.0) -> Tensor:
    """Replace the style of each feature map by a random style around its own style (DSU).

        mean = mu + e_mu * S_mu,  std = sigma + e_sigma * S_sigma,  e ~ N(0, 1) per sample and channel

    mu and sigma are the mean and the standard deviation of a channel; S_mu and S_sigma are their standard deviations
    over the batch, sqrt(variance + 1e-6). As in the released code of DSU (Li et al., ICLR 2022,
    https://arxiv.org/abs/2202.03958), gradients flow through all statistics, and `std` may be negative, which mirrors
    the channel.

    Args:
        features: (B, C, H, W), floating point. A batch of one image is returned unchanged.
        rng: a CPU generator.
        factor: multiplies S_mu and S_sigma, at least 0. 0 returns the features unchanged.

    Returns:
        (B, C, H, W) in the dtype of `features`; computed in float32 or float64.

    Raises:
        ValueError: if the features are not floating-point maps (B, C, H, W), or the factor is negative.
    """
    if factor < 0:
        raise ValueError(f"factor must be at least 0, got {factor}")
    own = torch.stack(feature_mean_std(features))  # (2, B, C)
    if factor == 0 or len(features) < 2:
        return features
    spread = (own.var(dim=1, keepdim=True) + EPSILON).sqrt()
    noise = torch.randn(own.shape, dtype=torch.float64, generator=rng).to(own)
    return replace_mean_std(features, own, own + factor * noise * spread).to(features.dtype)
