"""Masks of the features that contribute most to a prediction, and the selection of samples, as RSC uses them.

See Huang et al., "Self-Challenging Improves Cross-Domain Generalization", ECCV 2020, https://arxiv.org/abs/2007.02454.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def position_mask(features: Tensor, gradient: Tensor, fraction: float) -> Tensor:
    """Return a mask of the positions of a feature map that contribute most to a score, as in Grad-CAM.

    The contribution of a position is the weighted sum of its feature channels. The weight of a channel is the mean of
    its gradient over all positions.

    Args:
        features: (B, C, H, W).
        gradient: (B, C, H, W), the gradient of the score, usually the logit of the true class, by the features.
        fraction: in [0, 1]: ceil(fraction * H * W) positions of each image are masked, but never all.

    Returns:
        (B, 1, H, W) in the dtype of `features`, without a gradient: 0 at the masked positions, else 1.

    Raises:
        ValueError: if the fraction is outside [0, 1].
    """
    contribution = (features.detach() * gradient.detach().mean(dim=(2, 3), keepdim=True)).sum(dim=1)
    mask = _mask_highest(contribution.flatten(1), fraction)
    return mask.view(len(contribution), 1, *contribution.shape[1:]).to(features.dtype)


def channel_mask(gradient: Tensor, fraction: float) -> Tensor:
    """Return a mask of the channels of a feature map whose mean gradient over all positions is highest.

    Args:
        gradient: (B, C, H, W), the gradient of a score, usually the logit of the true class, by the features.
        fraction: in [0, 1]: ceil(fraction * C) channels of each image are masked, but never all.

    Returns:
        (B, C, 1, 1) in the dtype of `gradient`, without a gradient: 0 for the masked channels, else 1.

    Raises:
        ValueError: if the fraction is outside [0, 1].
    """
    mask = _mask_highest(gradient.detach().mean(dim=(2, 3)), fraction)
    return mask[..., None, None].to(gradient.dtype)


def select_largest_drops(drop: Tensor, n: int) -> Tensor:
    """Mark, (B,) bool, the up to n samples of a batch whose confidence dropped most (`drop` is before minus after)."""
    chosen = torch.zeros_like(drop, dtype=torch.bool)
    chosen[drop.detach().argsort(descending=True, stable=True)[:n]] = True
    return chosen & (drop.detach() > 0)


def _mask_highest(numbers: Tensor, fraction: float) -> Tensor:
    """Return (B, N) bool: False at the ceil(fraction * N) highest numbers of each row (B, N), True at least once."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be in [0, 1], got {fraction}")
    n = min(math.ceil(fraction * numbers.shape[1] - 1e-9), numbers.shape[1] - 1)
    highest = numbers.argsort(dim=1, descending=True, stable=True)[:, :n]
    return torch.ones_like(numbers, dtype=torch.bool).scatter(1, highest, False)
