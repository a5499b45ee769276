"""Balanced accuracy of classified images."""

from __future__ import annotations

import numpy as np

from medfed.metrics.class_metric import ClassMetric, sum_without_each_patient


class BalancedAccuracy(ClassMetric):
    """Mean recall over the classes that occur, in [0, 1]; a class's recall is the fraction of its images recognised."""

    name = "balanced_accuracy"
    label = "balanced"
    unit = "%"
    limits = (0.0, 1.0)
    note = "Balanced accuracy is the mean recall over the classes that a site has"

    def value(self, probabilities: np.ndarray, labels: np.ndarray) -> float:
        correct = probabilities.argmax(axis=1) == labels
        return np.mean([correct[labels == index].mean() for index in np.unique(labels)])

    def values_without_each_patient(
        self, probabilities: np.ndarray, labels: np.ndarray, patient_of: np.ndarray
    ) -> np.ndarray:
        correct = probabilities.argmax(axis=1) == labels
        recalls = [
            sum_without_each_patient(correct & of_class, patient_of) / sum_without_each_patient(of_class, patient_of)
            for of_class in (labels == index for index in np.unique(labels))
        ]
        return np.nanmean(recalls, axis=0)
