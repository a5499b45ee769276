"""Which features and samples RSC challenges (Huang et al., ECCV 2020, https://arxiv.org/abs/2007.02454)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def position_mask(features: Tensor, gradient: Tensor, share: float) -> Tensor:
    """A mask without the positions that speak most for the answer: sum_c z_c(x) * mean_x(g_c), as in Grad-CAM.

    Args:
        features, gradient: (B, C, H, W), z and g = d answer / dz.
        share: ceil(share * H * W) positions are left out, but never all.

    Returns:
        (B, 1, H, W), 1 where a position is kept and 0 elsewhere, without gradient, in the type of `features`.

    Raises:
        ValueError: if share is outside [0, 1].
    """
    found = (features.detach() * gradient.detach().mean(dim=(2, 3), keepdim=True)).sum(dim=1)
    return _mask_highest(found.flatten(1), share).view(len(found), 1, *found.shape[1:]).to(features.dtype)


def channel_mask(gradient: Tensor, share: float) -> Tensor:
    """A mask without the channels whose gradient (B, C, H, W) is highest on average over the map: (B, C, 1, 1)."""
    kept = _mask_highest(gradient.detach().mean(dim=(2, 3)), share)
    return kept[..., None, None].to(gradient.dtype)


def select_largest_drops(fall: Tensor, n: int) -> Tensor:
    """(B,) bool: the n samples whose confidence fell most; fewer where fewer fell at all."""
    chosen = torch.zeros_like(fall, dtype=torch.bool)
    chosen[fall.detach().argsort(descending=True, stable=True)[:n]] = True
    return chosen & (fall.detach() > 0)


def _mask_highest(numbers: Tensor, share: float) -> Tensor:
    """(B, N) to the same as bool, False at the ceil(share * N) highest of each row."""
    if not 0 <= share <= 1:
        raise ValueError(f"share must be in [0, 1], got {share}")
    n = min(math.ceil(share * numbers.shape[1] - 1e-9), numbers.shape[1] - 1)
    highest = numbers.argsort(dim=1, descending=True, stable=True)[:, :n]
    return torch.ones_like(numbers, dtype=torch.bool).scatter(1, highest, False)
