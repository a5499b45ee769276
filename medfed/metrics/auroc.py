"""Area under the ROC curve: how often a positive image scores above a negative one; ties count one half.

MONAI's `compute_roc_auc` treats ties alike, but takes no weights, which a bootstrap over patients needs, and a class
without images makes its mean NaN. Here AUROC is a rank statistic over many weightings at once, tested against MONAI's.
"""

from __future__ import annotations

import numpy as np

from medfed.metrics.class_metric import ClassMetric, ScoredImages, mean_of_defined, one_vs_rest, sort_with_ties


class AreaUnderROC(ClassMetric):
    """Two classes: class 1 is the positive one. More: one class against the rest, the mean over all classes that have
    positive and negative images. Undefined where there are none."""

    name = "auroc"
    label = "AUROC"
    unit = "%"
    limits = (0.0, 1.0)
    note = ("AUROC: of two classes that of the second, of more the mean of one against the rest; not defined for one "
            "class")  # fmt: skip

    def values(self, images: ScoredImages) -> np.ndarray:
        """Mann-Whitney: each positive image counts the negative ones below it, and half of those level with it."""
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
