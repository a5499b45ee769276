"""Accuracy of classified images."""

from __future__ import annotations

import numpy as np

from medfed.metrics.class_metric import ClassMetric, ScoredImages


class Accuracy(ClassMetric):
    """Weighted fraction of images whose most probable class is the true class, in [0, 1]."""

    name = "accuracy"
    label = "accuracy"
    unit = "%"
    limits = (0.0, 1.0)

    def values(self, images: ScoredImages) -> np.ndarray:
        """(R,): weighted share of the images whose most probable class is the true class."""
        return images.weights @ images.correct / images.total
