"""Expected calibration error (ECE): how far predicted probabilities are from observed frequencies."""

from __future__ import annotations

import numpy as np

from medfed.metrics.class_metric import N_BINS, ClassMetric, ScoredImages, confidence_bins


class ExpectedCalibrationError(ClassMetric):
    """Mean difference between the top probability of images and their accuracy, over 15 bins, in [0, 1].

    The top probability of an image is the probability of its predicted class. Images are grouped into 15 bins of equal
    width by top probability. The error is the mean over the bins of |accuracy - mean top probability|, weighted by the
    number of images. Eq. 3 of Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
    https://arxiv.org/abs/1706.04599. The metric has no interval, because it depends on the number of images in a bin:
    with fewer images it is larger.
    """

    name = "ece"
    label = "ECE"
    unit = "%"
    higher_is_better = False
    note = "ECE is the expected calibration error over 15 equal bins of the top probability (Guo et al. 2017)"
    has_interval = False

    def values(self, images: ScoredImages) -> np.ndarray:
        """Compute the expected calibration error under each weighting of the images (eq. 3 of Guo et al. 2017).

        The top probability of an image is the probability of its predicted class. Images are grouped into 15 bins of
        equal width by top probability. The error is the mean over the bins of |accuracy - mean top probability|, where
        a bin counts by the total weight of its images.

        Args:
            images: N images, with probabilities (N, K), true classes (N,) and weights (R, N). Each of the R rows of
                weights is one weighting of the images, such as one that leaves a patient out.

        Returns:
            (R,) float64 in [0, 1], one value per weighting. 0 means that the probabilities are perfectly calibrated.
        """
        in_bin = np.eye(N_BINS)[confidence_bins(images.probabilities)]
        difference = (images.correct - images.probabilities.max(axis=1))[:, None]
        return np.abs(images.weights @ (in_bin * difference)).sum(axis=1) / images.total  # eq. 3
