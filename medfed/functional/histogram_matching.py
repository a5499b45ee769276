"""Exact matching of histograms (EFDM; Zhang et al., CVPR 2022): all moments of a style at once, where AdaIN takes two.

The r-th smallest number of a channel becomes the r-th smallest of the style's. That needs maps of one size, and costs a
sort: O(HW log HW) a channel.
"""

from __future__ import annotations

from torch import Tensor


def match_histograms(features: Tensor, style: Tensor) -> Tensor:
    """The numbers of `style` in the order that those of `features` have.

    Args:
        features, style: (B, C, H, W), of one shape.

    Returns:
        (B, C, H, W): each channel has the style's histogram and the features' ranks. Equal numbers keep the order in
        which they stand. The gradient of `features` passes as if nothing had been changed, that of `style` goes where
        its numbers went.

    Raises:
        ValueError: if the shapes differ.
    """
    return features + _matching_change(features, style)


def mix_histograms(features: Tensor, ratio: Tensor, partners: Tensor) -> Tensor:
    """EFDMix: each sample takes ratio of its own histogram and 1 - ratio of its partner's.

    Args:
        features: (B, C, H, W).
        ratio: (B,), in [0, 1]; 1 is the identity, to the bit.
        partners: (B,), int64, a permutation. Both as `draws.draw_mixing` draws them.

    Returns:
        The shape and type of `features`, with gradients as in `matched`.

    Raises:
        ValueError: if ratio and partners are not as above.
    """
    if not tuple(ratio.shape) == tuple(partners.shape) == (len(features),):
        shapes = f"{tuple(ratio.shape)} and {tuple(partners.shape)}"
        raise ValueError(f"ratio and partners must be ({len(features)},), got {shapes}")
    if not bool(((ratio >= 0) & (ratio <= 1)).all()):
        raise ValueError(f"ratio must be in [0, 1], got {ratio.tolist()}")
    share = (1 - ratio).to(features)[:, None, None, None]
    return features + share * _matching_change(features, features[partners.to(features.device)])


def _matching_change(features: Tensor, style: Tensor) -> Tensor:
    if features.shape != style.shape or features.ndim != 4:
        shapes = f"{tuple(features.shape)} and {tuple(style.shape)}"
        raise ValueError(f"features and style must be one shape (B, C, H, W), got {shapes}")
    own = features.detach().flatten(2)
    rank = own.argsort(dim=2, stable=True).argsort(dim=2, stable=True)
    return (style.flatten(2).sort(dim=2, stable=True).values.gather(2, rank) - own).unflatten(2, features.shape[2:])
