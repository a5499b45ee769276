"""Score predicted classes: accuracy, balanced accuracy, AUROC and calibration error, and the curves behind them.

MONAI's `compute_roc_auc` is right about ties, but takes no weights, which a bootstrap over people needs, and one class
without images makes its mean NaN. Here AUROC is a rank statistic over many weightings at once, tested against MONAI's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

N_BINS = 15  # Guo et al., ICML 2017
SCORES = ("accuracy", "balanced_accuracy", "auroc", "ece")
Curve = tuple[np.ndarray, np.ndarray]


def accuracy(probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    """The share of images whose most probable class is the right one; None without images."""
    return _one("accuracy", probabilities, labels)


def balanced_accuracy(probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    """The mean recall over the classes that occur among the labels; None without images."""
    return _one("balanced_accuracy", probabilities, labels)


def auroc(probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    """Area under the ROC curve: how often a positive image scores above a negative one; ties count one half.

    Two classes: class 1 is the positive one. More: one class against the rest, the mean over all classes that have
    positive and negative images. None where there are none.
    """
    return _one("auroc", probabilities, labels)


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    """|accuracy - confidence| over 15 equal bins of the top probability, weighted by images (Guo et al. 2017, eq. 3).

    None without images.
    """
    return _one("ece", probabilities, labels)


def scores(probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """All of `SCORES` under several weightings of the images.

    Args:
        probabilities: (N, K), K at least 2, in [0, 1]. labels: (N,) integers below K.
        weights: (R, N), not negative; a bootstrap gives how often each image was drawn.

    Returns:
        name: (R,) float64, NaN where a weighting leaves the score undefined.

    Raises:
        ValueError: for other shapes, a label that is no class, or a probability that is not in [0, 1].
    """
    probabilities, labels = _checked(probabilities, labels)
    weights = np.asarray(weights, dtype=np.float64)
    if weights.ndim != 2 or weights.shape[1] != len(labels):
        raise ValueError(f"weights must be (R, {len(labels)}), got {weights.shape}")
    right = (probabilities.argmax(axis=1) == labels).astype(np.float64)
    of_class = np.eye(probabilities.shape[1])[labels]
    with np.errstate(invalid="ignore", divide="ignore"):
        recall = (weights * right) @ of_class / (weights @ of_class)
        in_bin = np.eye(N_BINS)[_bin(probabilities)]
        off = np.abs(weights @ (in_bin * (right - probabilities.max(axis=1))[:, None]))
        total = weights.sum(axis=1)
        found = (weights @ right / total, _mean_of_known(recall),
                 _auroc(probabilities, labels, weights), off.sum(axis=1) / total)  # fmt: skip
    return dict(zip(SCORES, found))


def reliability_curve(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean confidence, accuracy, number of images) of each bin of the top probability that holds any."""
    probabilities, labels = _checked(probabilities, labels)
    place, right = _bin(probabilities), probabilities.argmax(axis=1) == labels
    n = np.bincount(place, minlength=N_BINS)
    filled = n > 0
    sums = [np.bincount(place, values, N_BINS)[filled] for values in (probabilities.max(axis=1), right)]
    return sums[0] / n[filled], sums[1] / n[filled], n[filled]


def roc_curve(score: np.ndarray, positive: np.ndarray) -> Curve:
    """(false positive rate, true positive rate), from (0, 0) to (1, 1), a point for every threshold that differs.

    Args:
        score: (N,), higher for the positive class. positive: (N,) of 0 and 1, both of which must occur.

    Raises:
        ValueError: where one of the two is missing.
    """
    score, positive = np.asarray(score, dtype=np.float64), np.asarray(positive).astype(bool)
    if positive.all() or not positive.any():
        raise ValueError("a ROC curve needs positive and negative images")
    order, starts = _ties(-score)
    found = [np.add.reduceat(hit[order].astype(np.float64), starts).cumsum() for hit in (~positive, positive)]
    false, true = (np.concatenate([[0.0], counts / counts[-1]]) for counts in found)
    return false, true


def macro_roc_curve(probabilities: np.ndarray, labels: np.ndarray) -> Curve | None:
    """The ROC curve under which `auroc` lies: of class 1 of two; of more, the mean over one-against-the-rest curves.

    The mean is vertical, both ends of every upright step kept, so that its area is `auroc` itself. None where that is.
    """
    probabilities, labels = _checked(probabilities, labels)
    curves = [roc_curve(score, hit) for score, hit in _one_vs_rest(probabilities, labels) if 0 < hit.sum() < len(hit)]
    if not curves:
        return None
    places = np.unique(np.concatenate([false for false, _ in curves]))
    low = np.mean([np.interp(-places, -false[::-1], true[::-1]) for false, true in curves], axis=0)
    high = np.mean([np.interp(places, false, true) for false, true in curves], axis=0)
    return places.repeat(2), np.stack([low, high], axis=1).ravel()


def _one(name: str, probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    found = float(scores(probabilities, labels, np.ones((1, len(labels))))[name][0])
    return None if np.isnan(found) else found


def _auroc(probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mann-Whitney: each positive image counts the negative ones below it, and half of those level with it."""
    found = []
    for score, hit in _one_vs_rest(probabilities, labels):
        order, starts = _ties(score)
        drawn, hit = weights[:, order], hit[order].astype(np.float64)
        positive, negative = (np.add.reduceat(drawn * part, starts, axis=1) for part in (hit, 1 - hit))
        below = negative.cumsum(axis=1) - negative / 2
        found.append((positive * below).sum(axis=1) / (positive.sum(axis=1) * negative.sum(axis=1)))
    return _mean_of_known(np.stack(found, axis=1))


def _one_vs_rest(probabilities: np.ndarray, labels: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for index in (1,) if probabilities.shape[1] == 2 else range(probabilities.shape[1]):
        yield probabilities[:, index], labels == index


def _ties(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order that sorts the values, and where in it each run of equal ones starts."""
    order = values.argsort(kind="stable")
    return order, np.flatnonzero(np.diff(values[order], prepend=-np.inf))


def _mean_of_known(values: np.ndarray) -> np.ndarray:
    """(R, K) to (R,): the mean of what is not NaN; NaN where nothing is left."""
    known = ~np.isnan(values)
    return np.where(known, values, 0).sum(axis=1) / known.sum(axis=1)


def _bin(probabilities: np.ndarray) -> np.ndarray:
    """(N,) from 0: bin m holds the top probabilities in (m / 15, (m + 1) / 15]."""
    return np.digitize(probabilities.max(axis=1), np.arange(1, N_BINS) / N_BINS, right=True)


def _checked(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    probabilities, labels = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if probabilities.ndim != 2 or probabilities.shape[1] < 2 or labels.shape != (len(probabilities),):
        raise ValueError(f"probabilities must be (N, K), K at least 2, and labels (N,), got {probabilities.shape} and "
                         f"{labels.shape}")
    if not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise ValueError("probabilities must be in [0, 1]; unknown is no probability")
    labels = labels.astype(np.int64)
    if not ((labels >= 0) & (labels < probabilities.shape[1])).all():
        raise ValueError(f"labels must be from 0 to {probabilities.shape[1] - 1}, got {labels.min()} to {labels.max()}")
    return probabilities, labels
