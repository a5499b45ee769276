"""Metrics of a set of classified images: predicted probabilities against true classes.

A metric is computed under many weightings of the images at once, as the bootstrap over patients needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from medfed.core.errors import UserError
from medfed.metrics.metric import Metric

N_BINS = 15  # of the top probability, for calibration (Guo et al., ICML 2017)


@dataclass(frozen=True)
class ScoredImages:
    """Images with their predicted probabilities and true classes, under R weightings.

    Args:
        probabilities: (N, K), K at least 2, in [0, 1].
        labels: (N,) integers below K.
        weights: (R, N), not negative; a bootstrap gives how often each image was drawn.

    Raises:
        ValueError: for other shapes, a label that is no class, or a probability that is not in [0, 1].
    """

    probabilities: np.ndarray
    labels: np.ndarray
    weights: np.ndarray

    def __post_init__(self) -> None:
        probabilities, labels = check_scores(self.probabilities, self.labels)
        weights = np.asarray(self.weights, dtype=np.float64)
        if weights.ndim != 2 or weights.shape[1] != len(labels):
            raise ValueError(f"weights must be (R, {len(labels)}), got {weights.shape}")
        for name, value in (("probabilities", probabilities), ("labels", labels), ("weights", weights)):
            object.__setattr__(self, name, value)

    @cached_property
    def correct(self) -> np.ndarray:
        """(N,) float64: 1 where the most probable class is the true one."""
        return (self.probabilities.argmax(axis=1) == self.labels).astype(np.float64)

    @cached_property
    def one_hot(self) -> np.ndarray:
        """(N, K) float64: the true class of each image."""
        return np.eye(self.probabilities.shape[1])[self.labels]

    @cached_property
    def total(self) -> np.ndarray:
        """(R,): the sum of the weights."""
        return self.weights.sum(axis=1)


class ClassMetric(Metric):
    """A metric of a set of classified images.

    has_interval: whether the percentile bootstrap over patients gives its 95 % interval. False for a metric that
        resampling biases.
    """

    has_interval: ClassVar[bool] = True

    def missing_declarations(self) -> list[str]:
        has_values = type(self).values is not ClassMetric.values
        return super().missing_declarations() + ["function values"] * (not has_values)

    def values(self, images: ScoredImages) -> np.ndarray:
        """(R,) float64, a value per weighting; NaN where a weighting leaves the metric undefined."""
        raise NotImplementedError


def compute_class_metrics(
    metrics: Iterable[ClassMetric], probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """Compute metrics under several weightings; arguments and errors as `ScoredImages`.

    Returns:
        name: (R,) float64, NaN where a weighting leaves the metric undefined.
    """
    images = ScoredImages(probabilities, labels, weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        return {metric.name: _values(metric, images) for metric in metrics}


def _values(metric: ClassMetric, images: ScoredImages) -> np.ndarray:
    """(R,) float64: finite, or NaN where the metric is undefined; UserError for whatever else a metric does."""
    try:
        values = np.asarray(metric.values(images), dtype=np.float64)
    except Exception as error:  # code from outside medfed may raise anything
        raise UserError(f"metric '{metric.name}': {type(error).__name__}: {error}; correct it and go on with --resume, "
                        "the model is kept") from error
    if values.shape != images.total.shape:
        raise UserError(f"metric '{metric.name}': gave values of shape {values.shape}, expected {images.total.shape}; "
                        "correct it and go on with --resume, the model is kept")
    return np.where(np.isfinite(values), values, np.nan)


def compute_class_metric(metric: ClassMetric, probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    """One metric of images that all weigh the same; None where it is undefined."""
    value = float(compute_class_metrics([metric], probabilities, labels, np.ones((1, len(labels))))[metric.name][0])
    return None if np.isnan(value) else value


def one_vs_rest(probabilities: np.ndarray, labels: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(score, is positive), each (N,): for class 1 of two classes; of more, for each class against all others."""
    for index in (1,) if probabilities.shape[1] == 2 else range(probabilities.shape[1]):
        yield probabilities[:, index], labels == index


def sort_with_ties(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order that sorts the values, and where in it each run of equal values starts."""
    order = values.argsort(kind="stable")
    return order, np.flatnonzero(np.diff(values[order], prepend=-np.inf))


def mean_of_defined(values: np.ndarray) -> np.ndarray:
    """(R, K) to (R,): the mean of the values that are not NaN; NaN where there are none."""
    known = ~np.isnan(values)
    return np.where(known, values, 0).sum(axis=1) / known.sum(axis=1)


def confidence_bins(probabilities: np.ndarray) -> np.ndarray:
    """(N,) from 0: bin m holds the top probabilities in (m / 15, (m + 1) / 15]."""
    return np.digitize(probabilities.max(axis=1), np.arange(1, N_BINS) / N_BINS, right=True)


def check_scores(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as arrays; errors as `ScoredImages`."""
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
