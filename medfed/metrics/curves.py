"""The curves behind the metrics of classified images: ROC and reliability."""

from __future__ import annotations

import numpy as np

from medfed.metrics.class_metric import N_BINS, check_scores, confidence_bins, one_vs_rest, sort_with_ties

Curve = tuple[np.ndarray, np.ndarray]


def reliability_curve(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean confidence, accuracy, number of images) of each bin of the top probability that holds any."""
    probabilities, labels = check_scores(probabilities, labels)
    place, correct = confidence_bins(probabilities), probabilities.argmax(axis=1) == labels
    n = np.bincount(place, minlength=N_BINS)
    filled = n > 0
    sums = [np.bincount(place, values, N_BINS)[filled] for values in (probabilities.max(axis=1), correct)]
    return sums[0] / n[filled], sums[1] / n[filled], n[filled]


def roc_curve(score: np.ndarray, positive: np.ndarray) -> Curve:
    """(false positive rate, true positive rate), from (0, 0) to (1, 1), a point for every threshold that differs.

    Args:
        score: (N,), higher for the positive class.
        positive: (N,) of 0 and 1, both of which must occur.

    Raises:
        ValueError: where one of the two is missing.
    """
    score, positive = np.asarray(score, dtype=np.float64), np.asarray(positive).astype(bool)
    if positive.all() or not positive.any():
        raise ValueError("a ROC curve needs positive and negative images")
    order, starts = sort_with_ties(-score)
    counts = [np.add.reduceat(hit[order].astype(np.float64), starts).cumsum() for hit in (~positive, positive)]
    false, true = (np.concatenate([[0.0], count / count[-1]]) for count in counts)
    return false, true


def macro_roc_curve(probabilities: np.ndarray, labels: np.ndarray) -> Curve | None:
    """The ROC curve whose area is AUROC: of class 1 of two; of more, the mean over one-against-the-rest curves.

    The mean is vertical, both ends of every upright step kept, so that its area equals AUROC. None where that is
    undefined.
    """
    probabilities, labels = check_scores(probabilities, labels)
    curves = [
        roc_curve(score, hit) for score, hit in one_vs_rest(probabilities, labels) if 0 < hit.sum() < len(hit)
    ]
    if not curves:
        return None
    places = np.unique(np.concatenate([false for false, _ in curves]))
    low = np.mean([np.interp(-places, -false[::-1], true[::-1]) for false, true in curves], axis=0)
    high = np.mean([np.interp(places, false, true) for false, true in curves], axis=0)
    return places.repeat(2), np.stack([low, high], axis=1).ravel()
