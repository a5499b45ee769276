"""The 95th percentile of both directed surface distances together, in voxels: what the released code of ELCFS computes.

Equal to `medpy.metric.binary.hd95` without spacing. It is in `cases.csv` next to HD95, so that one can compare.
"""

from __future__ import annotations

import numpy as np

from medfed.metrics.mask_metric import MaskMetric, MaskPair


class PooledHausdorffDistance95(MaskMetric):
    name = "hd95_pooled_vx"
    label = "HD95"
    unit = "voxels, pooled"
    higher_is_better = False

    def value(self, masks: MaskPair) -> float:
        if masks.spacing and len(set(masks.spacing)) == 1:  # voxels are cubes: mm are voxels times a constant
            return float(np.percentile(np.concatenate(masks.surface_distances), 95)) / masks.spacing[0]
        return float(np.percentile(np.concatenate(masks.surface_distances_in_voxels), 95))

    def value_of_failure(self, masks: MaskPair) -> float:
        return masks.diagonal(in_voxels=True)
