"""The style of feature maps inside a network: share it, shift to another site's, explore beyond one's own, mix.

StableFDG (Park et al., NeurIPS 2023) does all four; mixing is MixStyle (Zhou et al., ICLR 2021). A style is the mean
and deviation of each channel of a map. Statistics are constants to the gradient throughout, as in both released codes
but for one place: StableFDG's exploration lets the gradient through the mean and deviation that it takes off.

Whether to act at all (p = 0.5, only in training) is for the caller to draw.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from medfed.functional.clustering import kmeans_plus_plus
from medfed.functional.style import channel_mean_std, replace_mean_std

EPSILON = 1e-6


class SiteStyle(NamedTuple):
    """What a site shares in StableFDG, four tensors (C,); or R of them together, (R, C)."""

    mean: Tensor            # mean over its images of the channel means
    std: Tensor             # and of the channel deviations
    mean_spread: Tensor     # how far images lie from them
    std_spread: Tensor


def feature_mean_std(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of every channel of every map: `style.statistics` with 1e-6 under the root, each (B, C)."""
    return channel_mean_std(features, EPSILON)


def restyle_features(features: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Take the own style off each map and put (mean, std), each (B, C), on; the own style is a constant.

    Returns:
        The shape and type of `features` (B, C, H, W); computed in float32 at least.

    Raises:
        ValueError: if the features are no maps, or mean or std is not (B, C).
    """
    own = _style(features)
    if mean.shape != own[0].shape or std.shape != own[0].shape:
        raise ValueError(f"mean and std must be {tuple(own[0].shape)}, got {tuple(mean.shape)} and {tuple(std.shape)}")
    return replace_mean_std(features, own, (mean.to(own), std.to(own))).to(features.dtype)


def compute_site_style(means: Tensor, stds: Tensor) -> SiteStyle:
    """A site's style, from the `moments` of all its images (N, C): 4C numbers, whatever N.

    The spread is sqrt(variance + 1e-6), as released, not the variance of the paper's text; unbiased, but 0 for the
    variance of a single image. Computed in float64, returned in float32.

    Raises:
        ValueError: if means and stds are not both (N, C) with N at least 1.
    """
    if means.ndim != 2 or means.shape != stds.shape or len(means) == 0:
        raise ValueError(f"means and stds must both be (N, C), got {tuple(means.shape)} and {tuple(stds.shape)}")
    both = torch.stack([means, stds]).detach().double()                                  # (2, N, C)
    variance, mean = torch.var_mean(both, dim=1, correction=min(1, len(means) - 1))
    return SiteStyle(*mean.float(), *(variance + EPSILON).sqrt().float())


def shift_style(features: Tensor, received: SiteStyle, rng: torch.Generator, n_kept: int | None = None) -> Tensor:
    """Give part of the batch the style of another site; those whose styles lie furthest apart keep theirs.

        mean = mean' + e * mean_spread',  std = max(0, std' + e * std_spread'),  e ~ N(0, 1) a sample and channel

    k-means++ on (mean, std) says which samples keep their style, as in the paper; the released code keeps centres of
    clusters in place of samples.

    Args:
        features: (B, C, H, W). Where their styles are not finite, training diverged, and they come back as they are.
        received: the other site's style, or those of R sites; each shifted sample then takes one of them at random.
        rng: a CPU generator.
        n_kept: how many keep their style, 0..B; B // 2 where it is None.

    Returns:
        The shape and type of `features`, in their order; kept samples are unchanged, bit for bit.

    Raises:
        ValueError: if n_kept is outside 0..B, or the style has not the features' channels.
    """
    own = _style(features)
    if not bool(own.isfinite().all()):
        return features
    n = len(features)
    n_kept = n // 2 if n_kept is None else n_kept
    if not 0 <= n_kept <= n:
        raise ValueError(f"n_kept must be in 0..{n}, the size of the batch, got {n_kept}")
    shifts = torch.ones(n, dtype=torch.bool)
    if n_kept:
        shifts[kmeans_plus_plus(torch.cat([*own], dim=1), n_kept, rng)] = False
    shifted = shifts.nonzero()[:, 0].to(features.device)
    style = _draw_styles(received, len(shifted), own.shape[2], rng).to(own)
    changed = replace_mean_std(features[shifted], own[:, shifted], style)
    return features.index_copy(0, shifted, changed.to(features.dtype))


def explore_styles(features: Tensor, added: Tensor, level: float = 3.0, clamp: bool = True) -> Tensor:
    """Samples in styles further out than their own: mean + a (mean - batch's mean), and the same for std.

    Args:
        features: (B, C, H, W), the batch; its average style is the centre.
        added: (A,), int64, which samples (`draws.oversample`); one may come twice.
        level: a; 0 leaves the style as it is, 3 is the paper's.
        clamp: cut negative deviations at 0. As released they are not cut, and turn the map over: that happens, with
            a = 3, wherever a deviation is under 0.75 of the batch's.

    Returns:
        (A, C, H, W), the added samples only, in the type of `features`.
    """
    own = _style(features)
    return replace_mean_std(features[added], own[:, added], _extrapolate(own, added, level, clamp)).to(features.dtype)


def mix_styles(features: Tensor, ratio: Tensor, partners: Tensor) -> Tensor:
    """MixStyle: each sample takes ratio of its own style and 1 - ratio of its partner's.

    Args:
        features: (B, C, H, W).
        ratio: (B,), in [0, 1]; 1 is the identity, 0 the partner's style whole.
        partners: (B,), int64, a permutation. Both as `draws.draw_mixing` draws them.

    Returns:
        The shape and type of `features`.

    Raises:
        ValueError: if ratio and partners are not as above.
    """
    own = _style(features)
    return replace_mean_std(features, own, _interpolate(own, ratio, partners)).to(features.dtype)


def explore_and_mix_styles(
    features: Tensor, added: Tensor, ratio: Tensor, partners: Tensor, level: float = 3.0, clamp: bool = True
) -> Tensor:
    """The batch and the added samples, explored and mixed: StableFDG's steps after the shift, in one.

    `explore`, then `mix`, but the maps are normalised once, as released. Twice would lose what a deviation of 0 took
    from a channel, where a mixed deviation still shows it.

    Args:
        ratio, partners: (B + A,), of the batch and, after it, the added samples.
        features, added, level, clamp: as in `explore`.

    Returns:
        (B + A, C, H, W). The labels are those of the batch, and after them `labels[added]`.
    """
    own = _style(features)
    everyone = torch.cat([torch.arange(len(features), device=added.device), added])
    style = torch.cat([own, _extrapolate(own, added, level, clamp)], dim=1)
    return replace_mean_std(features[everyone], own[:, everyone], _interpolate(style, ratio, partners)).to(
        features.dtype
    )


def _style(features: Tensor) -> Tensor:
    """(2, B, C): mean and deviation, constants to the gradient."""
    return torch.stack(feature_mean_std(features.detach()))


def _draw_styles(received: SiteStyle, n: int, n_channels: int, rng: torch.Generator) -> Tensor:
    """(2, n, C), float64, on the CPU."""
    shapes = {tuple(entry.shape) for entry in received}
    if len(shapes) != 1 or received.mean.ndim not in (1, 2) or received.mean.shape[-1] != n_channels:
        raise ValueError(f"the style must be four times ({n_channels},) or (R, {n_channels}), got {sorted(shapes)}")
    sites = torch.stack([torch.atleast_2d(entry) for entry in received]).detach().to("cpu", torch.float64)
    of_site = torch.randint(sites.shape[1], (n,), generator=rng)
    noise = torch.randn(2, n, n_channels, dtype=torch.float64, generator=rng)
    mean, std = sites[:2, of_site] + noise * sites[2:, of_site]
    return torch.stack([mean, std.clamp(min=0)])


def _extrapolate(style: Tensor, added: Tensor, level: float, clamp: bool) -> Tensor:
    """(2, B, C) to (2, A, C)."""
    mean, std = style[:, added] + level * (style[:, added] - style.mean(dim=1, keepdim=True))
    return torch.stack([mean, std.clamp(min=0) if clamp else std])


def _interpolate(style: Tensor, ratio: Tensor, partners: Tensor) -> Tensor:
    """(2, B, C) to the same."""
    n = style.shape[1]
    if tuple(ratio.shape) != (n,) or tuple(partners.shape) != (n,):
        raise ValueError(f"ratio and partners must be ({n},), got {tuple(ratio.shape)} and {tuple(partners.shape)}")
    if not bool(((ratio >= 0) & (ratio <= 1)).all()):
        raise ValueError(f"ratio must be in [0, 1], got {ratio.tolist()}")
    ratio = ratio.to(style)[:, None]
    return ratio * style + (1 - ratio) * style[:, partners]


def add_style_noise(features: Tensor, rng: torch.Generator, factor: float = 1.0) -> Tensor:
    """Give each map a style drawn around its own.

        mean = mu + e_mu * S_mu,  std = sigma + e_sigma * S_sigma,  e ~ N(0, 1) a sample and channel

    where S_mu and S_sigma are how far mu and sigma spread over the batch, sqrt(variance + 1e-6) of each channel. A
    drawn deviation may be negative, and then mirrors the channel, as published. Gradients pass through all statistics.

    Args:
        features: (B, C, H, W). One image has no spread: it comes back as it is.
        rng: a CPU generator.
        factor: of the spread, at least 0; 0 is the identity, to the bit.

    Returns:
        The shape and type of `features`; computed in float32 at least.

    Raises:
        ValueError: if the features are no maps, or the factor is negative.
    """
    if factor < 0:
        raise ValueError(f"factor must be at least 0, got {factor}")
    own = torch.stack(feature_mean_std(features))                                                 # (2, B, C)
    if factor == 0 or len(features) < 2:
        return features
    spread = (own.var(dim=1, keepdim=True) + EPSILON).sqrt()
    noise = torch.randn(own.shape, dtype=torch.float64, generator=rng).to(own)
    return replace_mean_std(features, own, own + factor * noise * spread).to(features.dtype)
