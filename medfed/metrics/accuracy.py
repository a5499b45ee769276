"""Accuracy: the fraction of images whose most probable class is the true class."""

from __future__ import annotations

import numpy as np

from medfed.metrics.class_metric import ClassMetric, ScoredImages


class Accuracy(ClassMetric):
    """Weighted fraction of images whose most probable class is the true class, in [0, 1].

    Example:
        >>> from medfed.metrics.class_metric import compute_class_metric
        >>> compute_class_metric(Accuracy(), np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
        0.5
    """

    name = "accuracy"
    label = "accuracy"
    unit = "%"
    limits = (0.0, 1.0)

    def values(self, images: ScoredImages) -> np.ndarray:
        """Compute the accuracy, the weighted fraction of correctly classified images, under each weighting.

        Args:
            images: N images, with probabilities (N, K), true classes (N,) and weights (R, N). Each of the R rows of
                weights is one weighting of the images, such as one that leaves a patient out.

        Returns:
            (R,) float64 in [0, 1], one value per weighting.
        """
        return images.weights @ images.correct / images.total
