"""Expected calibration error: |accuracy - confidence| over 15 equal bins of the top probability, weighted by images.

Equation 3 of "On Calibration of Modern Neural Networks" (Guo et al., ICML 2017, https://arxiv.org/abs/1706.04599).
"""

from __future__ import annotations

import numpy as np

from medfed.metrics.class_metric import N_BINS, ClassMetric, ScoredImages, confidence_bins


class ExpectedCalibrationError(ClassMetric):
    name = "ece"
    label = "ECE"
    unit = "%"
    higher_is_better = False
    note = "ECE is the expected calibration error over 15 equal bins of the top probability (Guo et al. 2017)"
    has_interval = False  # resampling drives it up: its interval would lie above it

    def values(self, images: ScoredImages) -> np.ndarray:
        in_bin = np.eye(N_BINS)[confidence_bins(images.probabilities)]
        difference = (images.correct - images.probabilities.max(axis=1))[:, None]
        return np.abs(images.weights @ (in_bin * difference)).sum(axis=1) / images.total
