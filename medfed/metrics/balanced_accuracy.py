"""Balanced accuracy: the mean recall over the classes."""

from __future__ import annotations

import numpy as np

from medfed.metrics.class_metric import ClassMetric, ScoredImages, mean_of_defined


class BalancedAccuracy(ClassMetric):
    """Mean recall over the classes that occur, in [0, 1]; a class's recall is the fraction of its images recognised."""

    name = "balanced_accuracy"
    label = "balanced"
    unit = "%"
    limits = (0.0, 1.0)
    note = "Balanced accuracy is the mean recall over the classes that a site has"

    def values(self, images: ScoredImages) -> np.ndarray:
        """Compute the balanced accuracy, the mean recall over the classes that occur, under each weighting.

        Args:
            images: N images, with probabilities (N, K), true classes (N,) and weights (R, N). Each of the R rows of
                weights is one weighting of the images, such as one that leaves a patient out.

        Returns:
            (R,) float64 in [0, 1], one value per weighting. A class whose images all have weight 0 does not count.
        """
        recall = (images.weights * images.correct) @ images.one_hot / (images.weights @ images.one_hot)
        return mean_of_defined(recall)
