"""Balanced accuracy of classified images."""

from __future__ import annotations

import numpy as np

from medfed.metrics.class_metric import ClassMetric, ScoredImages, mean_of_defined


class BalancedAccuracy(ClassMetric):
    """Mean recall over the classes that occur, in [0, 1]; a class's recall is the fraction of its images recognised.

    A class whose images all have weight 0 does not count.
    """

    name = "balanced_accuracy"
    label = "balanced"
    unit = "%"
    limits = (0.0, 1.0)
    note = "Balanced accuracy is the mean recall over the classes that a site has"

    def values(self, images: ScoredImages) -> np.ndarray:
        """(R,): weighted recall of each class, averaged over the classes that have images."""
        recall = (images.weights * images.correct) @ images.one_hot / (images.weights @ images.one_hot)
        return mean_of_defined(recall)
