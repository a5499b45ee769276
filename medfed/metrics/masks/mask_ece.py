"""Expected calibration error (ECE) of a predicted mask."""

from __future__ import annotations

import math

import numpy as np

from medfed.metrics.class_metric import N_BINS, probability_bins
from medfed.metrics.mask_metric import MaskMetric, MaskPair, bounding_box

MARGIN = 0.25  # of the box's length, on each side


class MaskCalibrationError(MaskMetric):
    """Mean difference between the predicted probability of a structure and its observed frequency, in [0, 1].

    The voxels are grouped into 15 bins of equal width by the probability p that they belong to the structure. The error
    is the mean over the bins of |mean p - share of voxels of the structure|, weighted by the number of voxels (eq. 3 of
    Guo et al., ICML 2017, https://arxiv.org/abs/1706.04599). For p this is the reading of Mehrtash et al., "Confidence
    Calibration and Predictive Uncertainty Estimation for Deep Medical Image Segmentation", IEEE TMI 2020,
    https://arxiv.org/abs/1911.13273: of 100 voxels with p = 0.7, 70 should belong to it. The value is unknown for masks
    without probabilities.

    In a whole image, most voxels are background that is easy to predict, so the error would be close to 0 for every
    network. Only the voxels near the structure count: those in the bounding box of the true mask, extended on each side
    by a quarter of its length, at least by one voxel. The prediction has no influence on this box, because otherwise a
    false positive far away would add easy background and improve the error. If the true mask is empty, it is the box of
    the predicted mask. The box and its margin are a choice of medfed.
    """

    name = "ece"
    label = "ECE"
    unit = "%"
    higher_is_better = False
    limits = (0.0, 1.0)
    worst = 1.0
    accepts_empty_masks = True
    note = (
        "ECE is the expected calibration error of the voxels' probabilities in 15 equal bins (Guo et al. 2017), in "
        "the bounding box of the true mask with a margin of a quarter of its length on each side"
    )

    def value(self, masks: MaskPair) -> float | None:
        """Accumulate the bins slice by slice, so that little memory is needed."""
        if masks.probability is None:
            return None
        mask = masks.reference if masks.reference.any() else masks.prediction
        box = tuple(_extended(side, length) for side, length in zip(bounding_box(mask), mask.shape, strict=True))
        excess = np.zeros(N_BINS)  # sum of p - y over the voxels of each bin, with y = 1 inside the true mask
        n_voxels = 0
        for p, y in zip(masks.probability[box], masks.reference[box], strict=True):
            excess += np.bincount(probability_bins(p).ravel(), (p.astype(np.float64) - y).ravel(), N_BINS)
            n_voxels += p.size
        return min(float(np.abs(excess).sum()) / n_voxels, 1.0)  # eq. 3; rounding may exceed 1


def _extended(side: slice, length: int) -> slice:
    margin = math.ceil(MARGIN * (side.stop - side.start))
    return slice(max(0, side.start - margin), min(length, side.stop + margin))
