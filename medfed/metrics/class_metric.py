"""Metrics of a set of classified images, from predicted probabilities and true classes.

A metric is computed under many weightings of the images at once, as the jackknife over patients needs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from medfed.core.errors import UserError
from medfed.metrics.metric import Metric

MAX_WEIGHTINGS = 100  # weightings that are computed together; limits the memory for a site with many images
N_BINS = 15  # of the top probability, for the calibration error and the reliability curve


@dataclass(frozen=True)
class ScoredImages:
    """Predicted probabilities and true classes of N images, with R different weightings of the images.

    Args:
        probabilities: (N, K) in [0, 1], K classes, at least 2.
        labels: (N,), true classes, integers in 0..K-1.
        weights: (R, N), at least 0. To leave out a patient: 0 for the images of the patient and 1 for the others.

    Raises:
        ValueError: if a shape differs, a label is not a class, or a probability is outside [0, 1].
    """

    probabilities: np.ndarray
    labels: np.ndarray
    weights: np.ndarray

    def __post_init__(self) -> None:
        probabilities, labels = check_scores(self.probabilities, self.labels)
        weights = np.asarray(self.weights, dtype=np.float64)
        if weights.ndim != 2 or weights.shape[1] != len(labels):
            raise ValueError(
                f"weights must have the shape (R, {len(labels)}), with one column for each label, got {weights.shape}"
            )
        for name, value in (("probabilities", probabilities), ("labels", labels), ("weights", weights)):
            object.__setattr__(self, name, value)

    @cached_property
    def correct(self) -> np.ndarray:
        """(N,) float64: 1 for an image whose most probable class is the true class, else 0."""
        return (self.probabilities.argmax(axis=1) == self.labels).astype(np.float64)

    @cached_property
    def one_hot(self) -> np.ndarray:
        """(N, K) float64: 1 at the true class of each image, else 0."""
        return np.eye(self.probabilities.shape[1])[self.labels]

    @cached_property
    def total(self) -> np.ndarray:
        """(R,) float64: the sum of the images' weights in each weighting."""
        return self.weights.sum(axis=1)


class ClassMetric(Metric):
    """Base class of the metrics of a set of classified images; a subclass declares attributes and overrides `values`.

    Attributes:
        has_interval: whether the 95 % interval over patients is reported. False for a metric that depends on the
            number of images, such as a calibration error.

    Example:
        >>> class ErrorRate(ClassMetric):
        ...     name, label, unit, higher_is_better = "error_rate", "error", "%", False
        ...
        ...     def values(self, images: ScoredImages) -> np.ndarray:
        ...         return images.weights @ (1 - images.correct) / images.total
        >>> compute_class_metric(ErrorRate(), np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
        0.5
    """

    has_interval: ClassVar[bool] = True

    def missing_declarations(self) -> list[str]:
        """Names that a metric's class must define and does not, such as "method values"."""
        has_values = type(self).values is not ClassMetric.values
        return super().missing_declarations() + ["method values"] * (not has_values)

    def values(self, images: ScoredImages) -> np.ndarray:
        """Compute the metric under each of the R weightings of the images; a subclass must override this method.

        Returns:
            (R,) float64; NaN for a weighting under which the metric is undefined.
        """
        raise NotImplementedError

    def values_without_each_patient(self, images: ScoredImages, patient_of: np.ndarray) -> np.ndarray | None:
        """Compute `values` without each of P patients, (P,) float64, faster; None if there is no faster way.

        `images` has one weighting, in which all weights are 1; `patient_of` (N,) has the patient, 0..P-1, of each
        image.
        """
        return None


def compute_class_metrics(
    metrics: Iterable[ClassMetric], probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """Compute several metrics of a set of classified images, once for each of several weightings of the images.

    The arrays are those of `ScoredImages`; weights are for example how often a bootstrap sample contains each image.

    Returns:
        By name of a metric, (R,) float64: one value per row of weights; NaN where the metric is undefined.

    Raises:
        ValueError: if a shape differs, a label is not a class, or a probability is outside [0, 1].
        UserError: if a metric raises an error or returns values of another shape.
    """
    images = ScoredImages(probabilities, labels, weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        return {metric.name: _values(metric, images) for metric in metrics}


def compute_without_each_patient(
    metrics: Iterable[ClassMetric], probabilities: np.ndarray, labels: np.ndarray, patient_of: np.ndarray
) -> dict[str, np.ndarray]:
    """Compute metrics once without each patient, (P,) float64 by name, for the jackknife; NaN where undefined.

    `patient_of` (N,) has the patient, 0..P-1, of each image. The rest is as in `compute_class_metrics`.
    """
    metrics, n = tuple(metrics), int(patient_of.max()) + 1
    images = ScoredImages(probabilities, labels, np.ones((1, len(labels))))
    with np.errstate(invalid="ignore", divide="ignore"):
        fast = {metric.name: metric.values_without_each_patient(images, patient_of) for metric in metrics}
    slow = [metric for metric in metrics if fast[metric.name] is None]
    blocks = [
        compute_class_metrics(slow, probabilities, labels, left_out[:, None] != patient_of)
        for left_out in np.array_split(np.arange(n), math.ceil(n / MAX_WEIGHTINGS))
        if slow
    ]
    values = {name: part for name, part in fast.items() if part is not None}
    return values | {metric.name: np.concatenate([block[metric.name] for block in blocks]) for metric in slow}


def _values(metric: ClassMetric, images: ScoredImages) -> np.ndarray:
    """Return (R,) float64: finite or NaN; a UserError names the metric if it fails."""
    try:
        values = np.asarray(metric.values(images), dtype=np.float64)
    except Exception as error:  # code from outside medfed may raise anything
        raise UserError(
            f"metric '{metric.name}': {type(error).__name__}: {error}; correct it and continue with --resume, the "
            "model is saved"
        ) from error
    if values.shape != images.total.shape:
        raise UserError(
            f"metric '{metric.name}': gave values of shape {values.shape}, expected {images.total.shape}; correct it "
            "and continue with --resume, the model is saved"
        )
    return np.where(np.isfinite(values), values, np.nan)


def compute_class_metric(metric: ClassMetric, probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    """Compute one metric of a set of classified images that all have the same weight.

    `probabilities` and `labels`, and the errors, are those of `compute_class_metrics`.

    Returns:
        The value; None if the metric is undefined for these images. A fraction is in [0, 1], even if tables show it in
        percent.
    """
    value = float(compute_class_metrics([metric], probabilities, labels, np.ones((1, len(labels))))[metric.name][0])
    return None if np.isnan(value) else value


def one_vs_rest(probabilities: np.ndarray, labels: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each problem "this class or another?" the class's probability (N,) and whether it is true (N,).

    With two classes, class 1 is the only positive class.
    """
    for index in (1,) if probabilities.shape[1] == 2 else range(probabilities.shape[1]):
        yield probabilities[:, index], labels == index


def sort_with_ties(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices that sort (N,) values, and (M,) where each of the M groups of equal values then starts."""
    order = values.argsort(kind="stable")
    return order, np.flatnonzero(np.diff(values[order], prepend=-np.inf))


def mean_of_defined(values: np.ndarray) -> np.ndarray:
    """Return the mean of each row (R, K) over the values that are not NaN; NaN for a row without any value."""
    known = ~np.isnan(values)
    return np.where(known, values, 0).sum(axis=1) / known.sum(axis=1)


def confidence_bins(probabilities: np.ndarray) -> np.ndarray:
    """Return the `probability_bins` of the images' largest probabilities (N, K), (N,) integers."""
    return probability_bins(probabilities.max(axis=1))


def probability_bins(probabilities: np.ndarray) -> np.ndarray:
    """Return the bin, 0..14, of each probability; bin m is (m / 15, (m + 1) / 15], and bin 0 also contains 0."""
    return np.digitize(probabilities, np.arange(1, N_BINS) / N_BINS, right=True)


def check_scores(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Check probabilities (N, K) in [0, 1] and true classes (N,), and return them as float64 and int64."""
    probabilities, labels = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if probabilities.ndim != 2 or probabilities.shape[1] < 2 or labels.shape != (len(probabilities),):
        raise ValueError(
            f"probabilities must be (N, K), K at least 2, and labels (N,), got {probabilities.shape} and {labels.shape}"
        )
    if not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise ValueError("probabilities must be in [0, 1], and not NaN")
    labels = labels.astype(np.int64)
    if not ((labels >= 0) & (labels < probabilities.shape[1])).all():
        raise ValueError(f"labels must be from 0 to {probabilities.shape[1] - 1}, got {labels.min()} to {labels.max()}")
    return probabilities, labels
