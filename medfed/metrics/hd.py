"""The Hausdorff distance: the largest distance from a point of one surface to the other surface."""

from __future__ import annotations

from medfed.metrics.mask_metric import MaskMetric, MaskPair
from medfed.metrics.metric import DISTANCE


class HausdorffDistance(MaskMetric):
    name = "hd"
    label = "HD"
    unit = DISTANCE
    higher_is_better = False

    def value(self, masks: MaskPair) -> float:
        there, back = masks.surface_distances
        return float(max(there.max(), back.max()))
