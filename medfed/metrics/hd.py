"""Hausdorff distance of two masks."""

from __future__ import annotations

from medfed.metrics.mask_metric import MaskMetric, MaskPair
from medfed.metrics.metric import DISTANCE


class HausdorffDistance(MaskMetric):
    """Largest distance of an edge voxel to the other mask's edge, in mm (pixels without a spacing)."""

    name = "hd"
    label = "HD"
    unit = DISTANCE
    higher_is_better = False

    def value(self, masks: MaskPair) -> float:
        """Return the larger of the two directed Hausdorff distances.

        Args:
            masks: a prediction and a reference that both have at least one voxel.

        Returns:
            Distance, at least 0, in mm if the spacing is known, else in pixels.
        """
        there, back = masks.surface_distances
        return float(max(there.max(), back.max()))
