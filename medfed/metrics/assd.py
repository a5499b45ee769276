"""The average symmetric surface distance: the mean over the edge voxels of both masks."""

from __future__ import annotations

import numpy as np

from medfed.metrics.mask_metric import MaskMetric, MaskPair
from medfed.metrics.metric import DISTANCE


class AverageSurfaceDistance(MaskMetric):
    name = "assd"
    label = "ASSD"
    unit = DISTANCE
    higher_is_better = False

    def value(self, masks: MaskPair) -> float:
        return float(np.concatenate(masks.surface_distances).mean())
