"""How far features along the outline of a structure are from those of the background beside it (ELCFS, Figure 7)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from medfed.functional.contrastive import masked_mean
from medfed.functional.regions import background_ring, boundary

N_LEVELS = 2  # the finest decoder levels, as ELCFS takes them; the same for every method


def boundary_distance(levels: Sequence[Tensor], mask: Tensor) -> Tensor:
    """1 - cosine between the mean feature of the inner rim and that of the ring around it, in [0, 2].

    The cosine is that of ELCFS's loss, and needs no scale: networks and rounds can be compared.

    Args:
        levels: features (B, D, h, w), brought to the size of the mask; their channels stand side by side.
        mask: (B, S, H, W). The ring is 5 pixels wide at 384, in proportion at other sizes, and at least 2.

    Returns:
        (n,) float64, one of each image and structure that has both regions.
    """
    size = mask.shape[-2:]
    width = max(2, round(5 * min(size) / 384))
    full = [functional.interpolate(one, size, mode="bilinear", align_corners=False) for one in levels]
    found = []
    for rim, around in zip(
        boundary(mask).bool().unbind(dim=1), background_ring(mask, width).bool().unbind(dim=1), strict=True
    ):
        inner, outer = (
            torch.cat([masked_mean(one, region)[0] for one in full], dim=1).double() for region in (rim, around)
        )
        there = rim.any(dim=(1, 2)) & around.any(dim=(1, 2))
        found.append(1 - functional.cosine_similarity(inner, outer)[there])
    return torch.cat(found)
