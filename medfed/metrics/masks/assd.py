"""Average symmetric surface distance (ASSD) of two masks."""

from __future__ import annotations

import numpy as np

from medfed.metrics.mask_metric import MaskMetric, MaskPair
from medfed.metrics.metric import DISTANCE


class AverageSurfaceDistance(MaskMetric):
    """Mean distance of the edge voxels of both masks to the other mask's edge.

    The unit is mm, or percent of the image's diagonal if the voxel size is unknown.
    """

    name = "assd"
    label = "ASSD"
    unit = DISTANCE
    higher_is_better = False

    def value(self, masks: MaskPair) -> float:
        return float(np.concatenate(masks.surface_distances).mean())
