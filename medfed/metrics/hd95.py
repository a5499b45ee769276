"""The 95 % Hausdorff distance as MONAI defines it: the larger of the two directed 95th percentiles."""

from __future__ import annotations

import numpy as np

from medfed.metrics.mask_metric import MaskMetric, MaskPair
from medfed.metrics.metric import DISTANCE


class HausdorffDistance95(MaskMetric):
    name = "hd95"
    label = "HD95"
    unit = DISTANCE
    higher_is_better = False
    note = "HD95 is the larger of the two directed 95th percentiles of the surface distances (MONAI's definition)"
    in_voxels = "hd95_pooled_vx"

    def value(self, masks: MaskPair) -> float:
        there, back = masks.surface_distances
        return float(max(np.percentile(there, 95), np.percentile(back, 95)))
