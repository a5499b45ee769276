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
        """Return the mean distance from an edge voxel of one mask to the nearest edge voxel of the other mask.

        The mean is over the edge voxels of both masks.

        Args:
            masks: the predicted mask and the true mask (reference), each with at least one voxel.

        Returns:
            Distance, at least 0, in mm if the voxel size is known, otherwise in pixels.
        """
        return float(np.concatenate(masks.surface_distances).mean())
