"""95th percentile of the surface distances of both directions together, in voxels, as in ELCFS's released code.

The value is equal to `medpy.metric.binary.hd95` without a spacing. `cases.csv` contains it next to HD95, for comparison
with published numbers.
"""

from __future__ import annotations

import numpy as np

from medfed.metrics.mask_metric import MaskMetric, MaskPair


class PooledHausdorffDistance95(MaskMetric):
    """95th percentile of the surface distances of both directions together, always in voxels.

    There is no mean over images without a voxel size, because their sizes may differ.
    """

    name = "hd95_pooled_vx"
    label = "HD95"
    unit = "voxels, pooled"
    higher_is_better = False
    note = "The pooled HD95 in voxels has no mean over images without a voxel size, whose sizes may differ"

    def value(self, masks: MaskPair) -> float:
        """Return the 95th percentile of all surface distances of two masks, in voxels.

        A surface distance is the distance from an edge voxel of one mask to the nearest edge voxel of the other mask.
        One percentile is computed over the distances of the edge voxels of both masks together.

        Args:
            masks: the predicted mask and the true mask (reference), each with at least one voxel.

        Returns:
            Distance, at least 0, in voxels, even if the voxel size in mm is known.
        """
        if masks.spacing and len(set(masks.spacing)) == 1:  # cubic voxels: mm are voxels times a constant
            return float(np.percentile(np.concatenate(masks.surface_distances), 95)) / masks.spacing[0]
        return float(np.percentile(np.concatenate(masks.surface_distances_in_voxels), 95))

    def value_of_failure(self, masks: MaskPair) -> float:
        """Return the value that the metric gets if exactly one mask is empty: the length of the image's diagonal.

        Args:
            masks: the predicted mask and the true mask (reference). Exactly one of the two is empty.

        Returns:
            The length in voxels, even if the voxel size in mm is known.
        """
        return masks.diagonal(in_voxels=True)
