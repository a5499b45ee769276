"""Distance between features on both sides of the outline of a structure (ELCFS, Figure 7)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from medfed.functional.contrastive import masked_mean
from medfed.functional.regions import background_ring, boundary

N_LEVELS = 2  # number of decoder levels, the finest, as in ELCFS; the same for every method


def boundary_distance(levels: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Compute the cosine distance between features inside and outside the outline of each structure.

    The mean feature over the structure's inner boundary is compared with the mean feature over a ring of background
    around it. The cosine is that of ELCFS's loss; it does not depend on the scale of the features, so that networks and
    rounds can be compared.

    Args:
        levels: features (B, D, h, w) of several decoder levels. They are interpolated to the size of the mask and
            concatenated along the channels.
        mask: (B, S, H, W) of 0 and 1. The ring is 5 pixels wide for H = W = 384, proportional to other sizes, and at
            least 2 pixels.

    Returns:
        (n,) float64 in [0, 2], 1 - cosine for each image and structure in which both regions exist.
    """
    size = mask.shape[-2:]
    width = max(2, round(5 * min(size) / 384))
    full = [F.interpolate(level, size, mode="bilinear", align_corners=False) for level in levels]
    distances = []
    for inside, ring in zip(
        boundary(mask).bool().unbind(dim=1), background_ring(mask, width).bool().unbind(dim=1), strict=True
    ):
        inner, outer = (
            torch.cat([masked_mean(level, region)[0] for level in full], dim=1).double() for region in (inside, ring)
        )
        exists = inside.any(dim=(1, 2)) & ring.any(dim=(1, 2))
        distances.append(1 - F.cosine_similarity(inner, outer)[exists])
    return torch.cat(distances)
