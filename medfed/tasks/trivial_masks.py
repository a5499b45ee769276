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
    """A network whose output does not depend on the image; `mask` is (K, H, W) or (K, X, Y, Z) of 0 and 1."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(CERTAIN * (2 * mask.float() - 1))

    def forward(self, image: Tensor) -> Tensor:
        return self.logits.repeat(len(image), *[1] * self.logits.dim())


def mean_masks(labels: Tensor, patient: Tensor) -> Tensor:
    """The mean of masks (N, K, H, W) at the threshold with the best Dice, (K, H, W) of 0 and 1, on a coarse grid."""
    volumes = [small_mask(labels[patient == index].permute(1, 2, 3, 0)) for index in patient.unique()]
    means = [mean_mask([volume[structure] for volume in volumes])[..., 0] for structure in range(labels.shape[1])]
    small = torch.from_numpy(np.stack(means)).float()
    return F.interpolate(small[None], labels.shape[-2:], mode="nearest")[0]
