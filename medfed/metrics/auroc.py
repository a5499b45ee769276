"""Area under the ROC curve (AUROC).

MONAI's `compute_roc_auc` takes no weights, which the jackknife over patients needs, and returns NaN if a class has no
images. Here AUROC is a rank statistic that is computed for many weightings at once, and tested against MONAI's.
"""

from __future__ import annotations

import numpy as np

from medfed.metrics.class_metric import ClassMetric, ScoredImages, mean_of_defined, one_vs_rest, sort_with_ties


class AreaUnderROC(ClassMetric):
    """Probability that a positive image has a higher score than a negative one; ties count one half.

    With two classes, class 1 is the positive class. With more classes, the probability is computed for each class
    against all other classes, and averaged over the classes that have both positive and negative images. The metric is
    undefined (NaN) if there is no such class.

    Example:
        >>> from medfed.metrics.class_metric import compute_class_metric
        >>> probabilities = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]])
        >>> compute_class_metric(AreaUnderROC(), probabilities, np.array([0, 0, 1]))
        1.0
    """

    name = "auroc"
    label = "AUROC"
    unit = "%"
    limits = (0.0, 1.0)
    note = ("AUROC: with two classes, the second one is positive; with more, the mean of one class against the rest; "
            "undefined if only one class occurs")  # fmt: skip

    def values(self, images: ScoredImages) -> np.ndarray:
        """Compute the area under the ROC curve (AUROC) under each weighting of the images.

        AUROC is the probability that a positive image has a higher score than a negative image (the Mann-Whitney
        statistic). Ties count one half. With two classes, class 1 is positive. With more classes, AUROC is computed for
        each class against all other classes, and averaged over the classes that occur.

        Args:
            images: N images, with probabilities (N, K), true classes (N,) and weights (R, N). Each of the R rows of
                weights is one weighting of the images, such as one that leaves a patient out.

        Returns:
            (R,) float64 in [0, 1], one value per weighting; NaN if only one class occurs in a weighting.
        """
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
