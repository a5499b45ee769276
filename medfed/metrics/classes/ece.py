"""Expected calibration error (ECE) of classified images."""

from __future__ import annotations

import numpy as np

from medfed.metrics.class_metric import ClassMetric, probability_bins


class ExpectedCalibrationError(ClassMetric):
    """Mean difference between the top probability of images and their accuracy, over 15 bins, in [0, 1].

    Images are grouped into 15 bins of equal width by the probability of their predicted class. The error is the mean
    over the bins of |accuracy - mean top probability|, weighted by the number of images. Eq. 3 of Guo et al., "On
    Calibration of Modern Neural Networks", ICML 2017, https://arxiv.org/abs/1706.04599. The metric has no interval,
    because it depends on the number of images in a bin: with fewer images it is larger.
    """

    name = "ece"
    label = "ECE"
    unit = "%"
    higher_is_better = False
    note = "ECE is the expected calibration error over 15 equal bins of the top probability (Guo et al. 2017)"
    has_interval = False

    def value(self, probabilities: np.ndarray, labels: np.ndarray) -> float:
        confidence, correct = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
        return np.abs(np.bincount(probability_bins(confidence), correct - confidence)).sum() / len(labels)  # eq. 3
