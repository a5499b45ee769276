"""Accuracy of classified images."""

from __future__ import annotations

import numpy as np

from medfed.metrics.class_metric import ClassMetric, sum_without_each_patient


class Accuracy(ClassMetric):
    """Fraction of images whose most probable class is the true class, in [0, 1]."""

    name = "accuracy"
    label = "accuracy"
    unit = "%"
    limits = (0.0, 1.0)

    def value(self, probabilities: np.ndarray, labels: np.ndarray) -> float:
        return np.mean(probabilities.argmax(axis=1) == labels)

    def values_without_each_patient(
        self, probabilities: np.ndarray, labels: np.ndarray, patient_of: np.ndarray
    ) -> np.ndarray:
        correct = probabilities.argmax(axis=1) == labels
        n_images = sum_without_each_patient(np.ones(len(labels)), patient_of)
        return sum_without_each_patient(correct, patient_of) / n_images
