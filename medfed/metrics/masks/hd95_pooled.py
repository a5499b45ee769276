"""95th percentile of the surface distances of both directions together, in voxels, as in ELCFS's released code."""

from __future__ import annotations

import numpy as np

from medfed.metrics.mask_metric import MaskMetric, MaskPair


class PooledHausdorffDistance95(MaskMetric):
    """95th percentile of the surface distances of both directions together, always in voxels.

    It equals `medpy.metric.binary.hd95` without a spacing, and is for comparison with published numbers. There is no
    mean over images without a voxel size, because their sizes may differ.
    """

    name = "hd95_pooled_vx"
    label = "HD95"
    unit = "voxels, pooled"
    higher_is_better = False
    note = "The pooled HD95 in voxels has no mean over images without a voxel size, whose sizes may differ"

    def value(self, masks: MaskPair) -> float:
        if masks.spacing and len(set(masks.spacing)) == 1:  # cubic voxels: mm are voxels times a constant
            return float(np.percentile(np.concatenate(masks.surface_distances), 95)) / masks.spacing[0]
        in_voxels = masks.distances_with(None) if masks.spacing else masks.surface_distances
        return float(np.percentile(np.concatenate(in_voxels), 95))

    def value_of_failure(self, masks: MaskPair) -> float:
        return masks.diagonal(in_voxels=True)
