"""Predictions of masks that ignore the image: the same mask for every image. A trained model must be better."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import torch
import torch.nn.functional as F

NO_FOREGROUND, ALL_FOREGROUND = "no pixel is foreground", "every pixel is foreground"
GRID = 64  # side length in pixels of the masks for the mean mask
THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of the mean mask, as fractions of its maximum


def small_mask(mask: torch.Tensor) -> np.ndarray:
    """Masks (S, H, W, D) of S structures as (S, 64, 64, D) uint8, by nearest neighbour."""
    slices = mask.float().permute(3, 0, 1, 2)
    small = F.interpolate(slices, size=(GRID, GRID), mode="nearest")
    return small.permute(1, 2, 3, 0).to(torch.uint8).numpy()


def mean_mask(masks: Sequence[np.ndarray]) -> np.ndarray:
    """The mean of all slices of masks (H, W, D) as one mask (H, W, 1), at the threshold with the best mean Dice."""
    total = sum(mask.sum(axis=-1) for mask in masks)
    mean = (total / sum(mask.shape[-1] for mask in masks))[..., None]
    if not mean.any():
        return np.zeros(mean.shape)
    options = [(mean >= threshold * mean.max()).astype(np.float64) for threshold in THRESHOLDS]
    return max(options, key=lambda option: fmean(constant_dice(option, mask) for mask in masks))


def constant_dice(prediction: np.ndarray, mask: np.ndarray) -> float:
    """Return the Dice of a prediction, (H, W, 1) or one number, for all slices; 1 if prediction and mask are empty."""
    whole = np.broadcast_to(prediction, mask.shape)
    size = whole.sum() + mask.sum()
    return float(2 * (whole * mask).sum() / size) if size else 1.0
