"""Area under the ROC curve (AUROC), as a rank statistic for many weightings at once.

MONAI's `compute_roc_auc`, against which it is tested, takes no weights, which the jackknife over patients needs, and
returns NaN if a class has no images.
"""

from __future__ import annotations

import numpy as np

from medfed.metrics.class_metric import ClassMetric, ScoredImages, mean_of_defined, one_vs_rest, sort_with_ties


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

    def values(self, images: ScoredImages) -> np.ndarray:
        """(R,): area under the ROC curve of each class against the others, averaged over the classes that have both."""
        areas = []
        for score, positive in one_vs_rest(images.probabilities, images.labels):
            order, starts = sort_with_ties(score)
            weights, is_positive = images.weights[:, order], positive[order].astype(np.float64)
            n_positive, n_negative = (
                np.add.reduceat(weights * part, starts, axis=1) for part in (is_positive, 1 - is_positive)
            )
            below = n_negative.cumsum(axis=1) - n_negative / 2
            areas.append((n_positive * below).sum(axis=1) / (n_positive.sum(axis=1) * n_negative.sum(axis=1)))
        return mean_of_defined(np.stack(areas, axis=1))

    def values_without_each_patient(self, images: ScoredImages, patient_of: np.ndarray) -> np.ndarray | None:
        """Compute AUROC without each patient from ranks, in O(N log N) instead of O(N P).

        Without a patient, the Mann-Whitney statistic is smaller by the pairs of the patient's positive images with all
        negative images and of the patient's negative images with all positive images. Pairs of two images of the
        patient are in both sums and count once. The result is None in a subclass with other `values`.
        """
        if type(self).values is not AreaUnderROC.values:
            return None
        areas, together = [], np.zeros_like(patient_of)
        for score, positive in one_vs_rest(images.probabilities, images.labels):
            n_below, n_above = _n_below(score, ~positive, together), _n_below(-score, positive, together)
            own_pairs = _n_below(score, ~positive, patient_of)
            lost = np.bincount(patient_of, np.where(positive, n_below - own_pairs, n_above))
            n_positive, n_negative = (part.sum() - np.bincount(patient_of, part) for part in (positive, ~positive))
            areas.append((n_below[positive].sum() - lost) / (n_positive * n_negative))
        return mean_of_defined(np.stack(areas, axis=1))


def _n_below(values: np.ndarray, counted: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return, for each value (N,), how many `counted` values of its group are below it; equal ones count one half."""
    order = np.lexsort((values, group))
    is_start = (np.diff(values[order], prepend=-np.inf) != 0) | (np.diff(group[order], prepend=-1) != 0)
    tie = is_start.cumsum() - 1  # the number of each value's set of equal values
    n_of_tie = np.bincount(tie, counted[order])
    n_of_group = np.bincount(group, counted)
    in_lower_groups = n_of_group.cumsum() - n_of_group
    n_below = np.empty(len(values))
    n_below[order] = (n_of_tie.cumsum() - n_of_tie / 2)[tie]
    return n_below - in_lower_groups[group]
