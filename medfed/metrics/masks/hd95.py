"""95 % Hausdorff distance (HD95) of two masks, as MONAI defines it."""

from __future__ import annotations

import numpy as np

from medfed.metrics.mask_metric import MaskMetric, MaskPair
from medfed.metrics.metric import DISTANCE


class HausdorffDistance95(MaskMetric):
    """Larger of the two 95th percentiles of the surface distances, from prediction to reference and back.

    A surface distance leads from the centre of an edge voxel of one mask to the nearest edge voxel of the other.
    The unit is mm, or percent of the image's diagonal if the voxel size is unknown. MONAI's
    `HausdorffDistanceMetric(percentile=95)` gives the same value in mm or pixels.
    """

    name = "hd95"
    label = "HD95"
    unit = DISTANCE
    higher_is_better = False
    note = "HD95 is the larger of the two directed 95th percentiles of the surface distances (MONAI's definition)"

    def value(self, masks: MaskPair) -> float:
        there, back = masks.surface_distances
        return float(max(np.percentile(there, 95), np.percentile(back, 95)))
