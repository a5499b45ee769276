"""Curves of classified images: the ROC curve and the reliability curve."""

from __future__ import annotations

import numpy as np

from medfed.metrics.class_metric import N_BINS, check_scores, confidence_bins, one_vs_rest, sort_with_ties

Curve = tuple[np.ndarray, np.ndarray]


def reliability_curve(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the reliability curve: how often predictions of a given confidence are right.

    The confidence of an image is the probability of its most probable class. Images are grouped by confidence into 15
    bins of equal width, and empty bins are left out.

    Args:
        probabilities: (N, K) in [0, 1], K at least 2.
        labels: (N,), true classes, integers in 0..K-1.

    Returns:
        Three arrays (M,), with one value for each of the M bins that are not empty: the mean confidence in [0, 1], the
        accuracy in [0, 1], and the number of images.

    Raises:
        ValueError: if a shape differs, a label is not a class, or a probability is outside [0, 1].
    """
    probabilities, labels = check_scores(probabilities, labels)
    place, correct = confidence_bins(probabilities), probabilities.argmax(axis=1) == labels
    n = np.bincount(place, minlength=N_BINS)
    filled = n > 0
    sums = [np.bincount(place, values, N_BINS)[filled] for values in (probabilities.max(axis=1), correct)]
    return sums[0] / n[filled], sums[1] / n[filled], n[filled]


def roc_curve(score: np.ndarray, positive: np.ndarray) -> Curve:
    """Return the receiver operating characteristic (ROC) curve of a binary problem.

    Args:
        score: (N,), predicted scores; a higher score means that the positive class is more likely.
        positive: (N,) of 0 and 1, 1 for the positive images; both must occur.

    Returns:
        A pair: the false positive rate (M,) and the true positive rate (M,) of the M points of the curve, both in
        [0, 1]. The first point is (0, 0), and each different score adds one point. The last point is (1, 1).

    Raises:
        ValueError: if there are no positive or no negative images.
    """
    score, positive = np.asarray(score, dtype=np.float64), np.asarray(positive).astype(bool)
    if positive.all() or not positive.any():
        raise ValueError("an ROC curve needs positive and negative images, got only one kind")
    order, starts = sort_with_ties(-score)
    counts = [np.add.reduceat(hit[order].astype(np.float64), starts).cumsum() for hit in (~positive, positive)]
    false, true = (np.concatenate([[0.0], count / count[-1]]) for count in counts)
    return false, true


def macro_roc_curve(probabilities: np.ndarray, labels: np.ndarray) -> Curve | None:
    """Return the ROC curve whose area is the metric AUROC.

    With two classes, the result is the curve of class 1. With more classes, there is one curve for each class that
    occurs, against all other classes, and the true positive rates of these curves are averaged at each false positive
    rate. Both ends of every vertical step are kept, so that the area equals AUROC.

    Args:
        probabilities: (N, K) in [0, 1], K at least 2.
        labels: (N,), true classes, integers in 0..K-1.

    Returns:
        A pair: the false positive rate (M,) and the true positive rate (M,) of the M points of the curve, both in
        [0, 1]. None if only one class occurs, because AUROC is then undefined.

    Raises:
        ValueError: if a shape differs, a label is not a class, or a probability is outside [0, 1].
    """
    probabilities, labels = check_scores(probabilities, labels)
    curves = [roc_curve(score, hit) for score, hit in one_vs_rest(probabilities, labels) if 0 < hit.sum() < len(hit)]
    if not curves:
        return None
    places = np.unique(np.concatenate([false for false, _ in curves]))
    low = np.mean([np.interp(-places, -false[::-1], true[::-1]) for false, true in curves], axis=0)
    high = np.mean([np.interp(places, false, true) for false, true in curves], axis=0)
    return places.repeat(2), np.stack([low, high], axis=1).ravel()
