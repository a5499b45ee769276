"""Curves of classified images: the ROC curve and the reliability curve."""

from __future__ import annotations

import numpy as np

from medfed.metrics.class_metric import N_BINS, check_scores, confidence_bins, one_vs_rest, sort_with_ties

Curve = tuple[np.ndarray, np.ndarray]


def reliability_curve(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean confidence, the accuracy and the number of images of each of 15 bins that is not empty.

    The confidence of an image is the probability of its most probable class; the bins have equal width.
    """
    probabilities, labels = check_scores(probabilities, labels)
    place, correct = confidence_bins(probabilities), probabilities.argmax(axis=1) == labels
    n = np.bincount(place, minlength=N_BINS)
    filled = n > 0
    sums = [np.bincount(place, values, N_BINS)[filled] for values in (probabilities.max(axis=1), correct)]
    return sums[0] / n[filled], sums[1] / n[filled], n[filled]


def roc_curve(score: np.ndarray, positive: np.ndarray) -> Curve:
    """Return the false and the true positive rates of the ROC curve, from (0, 0) to (1, 1), one point per score."""
    score, positive = np.asarray(score, dtype=np.float64), np.asarray(positive).astype(bool)
    if positive.all() or not positive.any():
        raise ValueError("an ROC curve needs positive and negative images, got only one kind")
    order, starts = sort_with_ties(-score)
    counts = [np.add.reduceat(hit[order].astype(np.float64), starts).cumsum() for hit in (~positive, positive)]
    false, true = (np.concatenate([[0.0], count / count[-1]]) for count in counts)
    return false, true


def macro_roc_curve(probabilities: np.ndarray, labels: np.ndarray) -> Curve | None:
    """Return the ROC curve whose area is the metric AUROC; None if only one class occurs.

    With more than two classes, the true positive rates of the classes' curves against all other classes are averaged at
    each false positive rate. Both ends of every vertical step are kept, so that the area equals AUROC.
    """
    probabilities, labels = check_scores(probabilities, labels)
    curves = [roc_curve(score, hit) for score, hit in one_vs_rest(probabilities, labels) if 0 < hit.sum() < len(hit)]
    if not curves:
        return None
    places = np.unique(np.concatenate([false for false, _ in curves]))
    low = np.mean([np.interp(-places, -false[::-1], true[::-1]) for false, true in curves], axis=0)
    high = np.mean([np.interp(places, false, true) for false, true in curves], axis=0)
    return places.repeat(2), np.stack([low, high], axis=1).ravel()
