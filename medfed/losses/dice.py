"""The soft Dice loss of segmentation."""

from __future__ import annotations

from monai.losses import DiceLoss
from torch import Tensor

SMOOTHING = 1e-5


def soft_dice_loss(logits: Tensor, label: Tensor) -> Tensor:
    """Return one minus the soft Dice coefficient, computed over the batch for each structure, averaged.

    With p = sigmoid(logits) and y = label, summed over batch and pixels of a structure:
    1 - (2 sum(p y) + s) / (sum(p) + sum(y) + s), s = 1e-5. The segmentation loss of ELCFS (Liu et al., CVPR 2021,
    https://arxiv.org/abs/2103.06030). It is finite for empty masks.

    Args:
        logits: (B, K, H, W), one channel for each structure; structures may overlap.
        label: (B, K, H, W) of 0 and 1, any type.

    Returns:
        Scalar in [0, 1].
    """
    criterion = DiceLoss(sigmoid=True, batch=True, smooth_nr=SMOOTHING, smooth_dr=SMOOTHING)
    return criterion(logits, label.to(logits.dtype))
