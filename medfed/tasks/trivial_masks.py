"""Masks that ignore the image, as networks: the same mask for every slice, scored as the masks of a model are."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medfed.metrics.trivial import mean_mask, small_mask

MEAN_MASK = "the mean mask of the training images"
CERTAIN = 100.0  # logit whose sigmoid is 1 in float32, above every threshold


class FixedMask(nn.Module):
    """A network whose output does not depend on the image.

    Args:
        mask: (K, H, W) of 0 and 1, the predicted mask of K structures.
    """

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(CERTAIN * (2 * mask.float() - 1))

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits of the mask, (B, K, H, W), for B images."""
        return self.logits.repeat(len(image), 1, 1, 1)


def mean_masks(labels: Tensor, patient: Tensor) -> Tensor:
    """Return the mean mask of each structure over all slices, at the threshold with the best Dice on these slices.

    The mean is computed on a grid of 64 x 64 pixels.

    Args:
        labels: (N, K, H, W) of 0 and 1, the masks of N slices, at least one.
        patient: (N,), the index of the volume that each slice belongs to.

    Returns:
        (K, H, W) float32 of 0 and 1.
    """
    volumes = [small_mask(labels[patient == index].permute(1, 2, 3, 0)) for index in patient.unique()]
    means = [mean_mask([volume[structure] for volume in volumes])[..., 0] for structure in range(labels.shape[1])]
    small = torch.from_numpy(np.stack(means)).float()
    return F.interpolate(small[None], labels.shape[-2:], mode="nearest")[0]
