"""The soft Dice loss of segmentation."""

from __future__ import annotations

from monai.losses import DiceLoss
from torch import Tensor

SMOOTHING = 1e-5


def soft_dice_loss(logits: Tensor, label: Tensor) -> Tensor:
    """Return the soft Dice loss: one minus the soft Dice coefficient of each structure, averaged over the structures.

        1 - (2 sum(p y) + s) / (sum(p) + sum(y) + s)   for each structure,   p = sigmoid(logits), y = label, s = 1e-5

    The sums are over all pixels of the whole batch; s keeps the loss finite for empty masks. This is the segmentation
    loss of ELCFS (Liu et al., "FedDG", CVPR 2021, https://arxiv.org/abs/2103.06030).

    Args:
        logits: (B, K, H, W), one channel for each of K structures; structures may overlap.
        label: (B, K, H, W) of 0 and 1, any type.

    Returns:
        A scalar tensor in [0, 1].
    """
    criterion = DiceLoss(sigmoid=True, batch=True, smooth_nr=SMOOTHING, smooth_dr=SMOOTHING)
    return criterion(logits, label.to(logits.dtype))
