"""Metrics of a set of classified images, from predicted probabilities and true classes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from medfed.metrics.metric import Metric, errors_of

MAX_PATIENTS = 2000  # for the interval of a metric that is computed again without each patient
N_BINS = 15  # of the top probability, for the calibration error and the reliability curve


class ClassMetric(Metric):
    """Base class of the metrics of a set of classified images; a subclass declares attributes and overrides `value`.

    Attributes:
        has_interval: whether the 95 % interval over patients is reported. False for a metric that depends on the
            number of images, such as a calibration error.

    Example:
        >>> class ErrorRate(ClassMetric):
        ...     name, label, unit, higher_is_better = "error_rate", "error", "%", False
        ...
        ...     def value(self, probabilities: np.ndarray, labels: np.ndarray) -> float:
        ...         return np.mean(probabilities.argmax(axis=1) != labels)
        >>> compute_class_metric(ErrorRate(), np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
        0.5
    """

    has_interval: ClassVar[bool] = True

    @abstractmethod
    def value(self, probabilities: np.ndarray, labels: np.ndarray) -> float:
        """Compute the metric of N images of K classes; a subclass must override this method.

        Args:
            probabilities: (N, K) float64 in [0, 1]; N is at least 1, K at least 2.
            labels: (N,) int64, the true classes, from 0 to K - 1.

        Returns:
            The metric, NaN if it is undefined. A fraction is in [0, 1], even if tables show it in percent.
        """

    def values_without_each_patient(
        self, probabilities: np.ndarray, labels: np.ndarray, patient_of: np.ndarray
    ) -> np.ndarray:
        """Compute the metric P times, (P,) float64, each time without the images of one patient.

        `patient_of`, (N,), has the patient, from 0 to P - 1, of each image. The base class calls `value` P times. A
        subclass with a faster way overrides this method; otherwise, the metric has no interval at sites with more than
        2000 patients.
        """
        n_patients = int(patient_of.max()) + 1
        if n_patients > MAX_PATIENTS:
            return np.full(n_patients, np.nan)
        others = (patient_of != patient for patient in range(n_patients))
        values = [compute_class_metric(self, probabilities[other], labels[other]) for other in others]
        return np.array(values, dtype=np.float64)


def compute_class_metric(metric: ClassMetric, probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    """Compute one metric of a set of classified images.

    Args:
        probabilities: (N, K) in [0, 1], of K classes; K is at least 2.
        labels: (N,), the true classes, integers from 0 to K - 1.

    Returns:
        The value, None if the metric is undefined for these images. A fraction is in [0, 1], even if tables show it in
        percent.

    Raises:
        ValueError: if a shape differs, a label is not a class, or a probability is outside [0, 1].
        UserError: if the metric raises an error or does not return a number.
    """
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
    if not len(labels):
        return None
    with errors_of(metric):
        value = float(metric.value(probabilities, labels))
    return value if math.isfinite(value) else None


def jackknife_values(
    metric: ClassMetric, probabilities: np.ndarray, labels: np.ndarray, patient_of: np.ndarray
) -> np.ndarray:
    """Compute one value per patient of a metric of a set of images; the mean of the values is the metric.

    With the metric s of all images, and s_i without the images of patient i, the value of patient i is
    s + (P - 1) (mean(s_i) - s_i). For the accuracy of patients with one image each, the value is 1 for a correct image
    and 0 for a wrong one. The standard deviation of the values, divided by sqrt(P), is the jackknife standard error of
    s (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 11).

    Args:
        probabilities, labels: as in `compute_class_metric`.
        patient_of: (N,), the patient, from 0 to P - 1, of each image.

    Returns:
        (P,) float64. All are NaN if the metric has no interval, there is one patient only, or the metric is undefined
        for all images or without one of the patients.
    """
    n_patients = int(patient_of.max()) + 1
    score = compute_class_metric(metric, probabilities, labels)
    if score is None or n_patients == 1 or not metric.has_interval:
        return np.full(n_patients, np.nan)
    is_own = "values_without_each_patient" in vars(type(metric))  # a parent's belongs to another `value`
    without_each_patient = (type(metric) if is_own else ClassMetric).values_without_each_patient
    with np.errstate(invalid="ignore", divide="ignore"):
        values = without_each_patient(metric, probabilities, labels, patient_of)
    return score + (n_patients - 1) * (values.mean() - values)


def sum_without_each_patient(values: np.ndarray, patient_of: np.ndarray) -> np.ndarray:
    """The sum of values (N,) without the images of each patient, (P,)."""
    return values.sum() - np.bincount(patient_of, values)


def one_vs_rest(probabilities: np.ndarray, labels: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each class its probabilities (N,) and whether it is the true class (N,).

    A class that no image or every image has is left out. With two classes, class 1 is the only positive class.
    """
    for index in (1,) if probabilities.shape[1] == 2 else range(probabilities.shape[1]):
        positive = labels == index
        if positive.any() and not positive.all():
            yield probabilities[:, index], positive


def probability_bins(probabilities: np.ndarray) -> np.ndarray:
    """Return the bin, 0..14, of each probability; bin m is (m / 15, (m + 1) / 15], and bin 0 also contains 0."""
    return np.digitize(probabilities, np.arange(1, N_BINS) / N_BINS, right=True)
