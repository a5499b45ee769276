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
        """Return the largest distance from an edge voxel of one mask to the nearest edge voxel of the other mask.

        Both directions count: the edge voxels of the predicted mask, and the edge voxels of the true mask.

        Args:
            masks: the predicted mask and the true mask (reference), each with at least one voxel.

        Returns:
            Distance, at least 0, in mm if the voxel size is known, otherwise in pixels.
        """
        there, back = masks.surface_distances
        return float(max(there.max(), back.max()))
