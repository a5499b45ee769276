"""Hausdorff distance of two masks."""

from __future__ import annotations

from medfed.metrics.mask_metric import MaskMetric, MaskPair
from medfed.metrics.metric import DISTANCE


class HausdorffDistance(MaskMetric):
    """Largest distance of an edge voxel of one mask to the other mask's edge.

    The unit is mm, or percent of the image's diagonal if the voxel size is unknown.
    """

    name = "hd"
    label = "HD"
    unit = DISTANCE
    higher_is_better = False

    def value(self, masks: MaskPair) -> float:
        there, back = masks.surface_distances
        return float(max(there.max(), back.max()))
