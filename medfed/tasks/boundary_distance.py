"""Cosine distance between the features on the boundary of a structure and those of the background (ELCFS, Figure 7)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from medfed.functional.contrastive import masked_mean
from medfed.functional.regions import background_ring, boundary

N_LEVELS = 2  # number of decoder levels, the finest, as in ELCFS; the same for every method


def boundary_distance(levels: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Compute the cosine distance between the features on the boundary of each structure and those of the background.

    The mean feature vectors are compared over the boundary pixels (of the structure, with a neighbour outside) and over
    a ring of background around the structure. The distance does not depend on the scale of the features, so networks
    and rounds can be compared. ELCFS (Liu et al., "FedDG", CVPR 2021), Figure 7.

    Args:
        levels: feature maps of several decoder levels, each (B, D, h, w), where D, h and w depend on the level. They
            are interpolated to the size of the mask and concatenated along the channels.
        mask: (B, S, H, W) of 0 and 1, one channel per structure. The ring is 5 pixels wide if the shorter side has 384
            pixels, in proportion otherwise, and at least 2 pixels.

    Returns:
        (n,) float64 in [0, 2]: 1 minus the cosine similarity, for each image and structure whose boundary and ring both
        contain a pixel.
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
