"""Area under the ROC curve (AUROC)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.stats import rankdata

from medfed.metrics.class_metric import ClassMetric, one_vs_rest, sum_without_each_patient


class AreaUnderROC(ClassMetric):
    """Probability that a positive image has a higher score than a negative one; ties count one half.

    With two classes, class 1 is the positive class. With more classes, the probability is computed for each class
    against all other classes, and averaged over the classes that have both positive and negative images. The metric is
    undefined (NaN) if there is no such class.
    """

    name = "auroc"
    label = "AUROC"
    unit = "%"
    limits = (0.0, 1.0)
    note = (
        "AUROC: with two classes, the second one is positive; with more, the mean of one class against the rest; "
        "undefined if only one class occurs"
    )

    def value(self, probabilities: np.ndarray, labels: np.ndarray) -> float:
        from sklearn.metrics import roc_auc_score

        areas = [roc_auc_score(positive, score) for score, positive in one_vs_rest(probabilities, labels)]
        return np.mean(areas) if areas else np.nan

    def values_without_each_patient(
        self, probabilities: np.ndarray, labels: np.ndarray, patient_of: np.ndarray
    ) -> np.ndarray:
        # AUROC is the share of the pairs of a positive and a negative image in which the positive one is higher.
        # Without a patient, the pairs of the patient's images with all images of the other kind are lost. A pair of two
        # images of the patient is in the sum twice and is lost once.
        areas = []
        for score, positive in one_vs_rest(probabilities, labels):
            below = _n_below(score, positive)
            pairs = np.where(positive, below, positive.sum() - below)  # in which the positive image is higher
            by_patient = rankdata(score, "dense") + patient_of * (len(score) + 1)
            own_pairs = _n_below(by_patient, positive) - _n_below(patient_of, positive, "min")
            lost = np.bincount(patient_of, pairs - np.where(positive, own_pairs, 0))
            n_positive, n_negative = (sum_without_each_patient(kind, patient_of) for kind in (positive, ~positive))
            areas.append((below[positive].sum() - lost) / (n_positive * n_negative))
        return np.nansum(areas, axis=0) / np.isfinite(areas).sum(axis=0)


def _n_below(values: np.ndarray, positive: np.ndarray, ties: Literal["average", "min"] = "average") -> np.ndarray:
    """For each image, how many images of the other kind have a lower value; equal ones count one half, or 0 ("min")."""
    ranks = rankdata(values, ties)
    for kind in (positive, ~positive):
        ranks[kind] -= rankdata(values[kind], ties)
    return ranks
