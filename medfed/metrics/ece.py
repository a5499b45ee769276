"""Expected calibration error (ECE): how far predicted probabilities are from observed frequencies."""

from __future__ import annotations

import numpy as np

from medfed.metrics.class_metric import N_BINS, ClassMetric, ScoredImages, confidence_bins


class ExpectedCalibrationError(ClassMetric):
    """Mean over 15 equal bins of the top probability of |accuracy - mean top probability|, weighted by images.

    Eq. 3 of Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, https://arxiv.org/abs/1706.04599. It has
    no bootstrap interval: resampling increases it, so the interval would lie above the value.
    """

    name = "ece"
    label = "ECE"
    unit = "%"
    higher_is_better = False
    note = "ECE is the expected calibration error over 15 equal bins of the top probability (Guo et al. 2017)"
    has_interval = False

    def values(self, images: ScoredImages) -> np.ndarray:
        """Compute the expected calibration error under each weighting (eq. 3).

        Args:
            images: N images with probabilities of K classes, true classes, and R weightings.

        Returns:
            (R,) in [0, 1]; 0 is perfectly calibrated.
        """
        in_bin = np.eye(N_BINS)[confidence_bins(images.probabilities)]
        difference = (images.correct - images.probabilities.max(axis=1))[:, None]
        return np.abs(images.weights @ (in_bin * difference)).sum(axis=1) / images.total  # eq. 3
