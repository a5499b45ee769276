"""Metrics of one structure of one patient: a predicted mask against a reference mask.

Edges and surface distances are those of MONAI, computed faster. Two things that MONAI lacks are added: a rule for empty
masks (MONAI's HD95 is NaN for a missed organ, and its mean skips NaN), and the unit in the column's name. A distance of
an image without a voxel size is a percentage of the image's diagonal, because a mean over distances in pixels of images
of different sizes has no meaning.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch

from medfed.core.errors import UserError
from medfed.metrics.metric import DISTANCE, Metric, errors_of, metric_columns
from medfed.metrics.surface_distance import distances_to_edge, mask_edge

Mask = torch.Tensor | np.ndarray
DistancePair = tuple[np.ndarray, np.ndarray]  # from the prediction to the reference, and back
OK, MISSED, FALSE_ALARM, ABSENT = ("ok", "missed", "false_alarm", "absent")


@dataclass(frozen=True)
class MaskPair:
    """A predicted mask and a reference (true) mask of one structure of one patient.

    Args:
        prediction: (H, W, D) bool, or (H, W) for a volume of one slice.
        reference: bool, in the shape of `prediction`.
        spacing: voxel size in mm along each axis of the masks; None if it is unknown.
        probability: predicted probability in [0, 1] that a voxel belongs to the structure, in the shape of
            `prediction`; None if it is unknown.
    """

    prediction: np.ndarray
    reference: np.ndarray
    spacing: tuple[float, ...] | None
    probability: np.ndarray | None = None

    @classmethod
    def from_masks(
        cls,
        prediction: Mask,
        reference: Mask,
        spacing_mm: tuple[float, float, float] | None,
        probability: Mask | None = None,
    ) -> MaskPair:
        """Check masks (H, W, D) of 0 and 1 (tensors or arrays), and return them without the axis D if D = 1.

        Raises:
            ValueError: if a mask is not (H, W, D) or has other values than 0 and 1, the shapes differ, or a spacing is
                not positive.
        """
        predicted, true = _binary(prediction, "prediction"), _binary(reference, "reference")
        p = None if probability is None else _array(probability)
        for name, other in (("reference", true), ("probability", p)):
            if other is not None and predicted.shape != other.shape:
                raise ValueError(f"prediction {predicted.shape} and {name} {other.shape} must have the same shape")
        spacing = None if spacing_mm is None else tuple(map(float, spacing_mm))
        if spacing is not None and not (len(spacing) == 3 and all(0 < step < math.inf for step in spacing)):
            raise ValueError(f"spacing_mm must be three positive numbers along H, W, D, or None, got {spacing}")
        if predicted.shape[2] == 1:
            return cls(predicted[..., 0], true[..., 0], spacing and spacing[:2], None if p is None else p[..., 0])
        return cls(predicted, true, spacing, p)

    @cached_property
    def status(self) -> str:
        """Which masks are empty: "ok" (none), "missed" (prediction), "false_alarm" (reference) or "absent" (both)."""
        if self.reference.any():
            return OK if self.prediction.any() else MISSED
        return FALSE_ALARM if self.prediction.any() else ABSENT

    @cached_property
    def surface_distances(self) -> DistancePair:
        """For each edge voxel of one mask, the distance to the nearest edge voxel of the other mask.

        Two float64 arrays, for the edge voxels of the predicted and of the true mask, in mm if the voxel size is known,
        otherwise in pixels. Both masks must have at least one voxel.
        """
        return self.distances_with(self.spacing)

    def distances_with(self, spacing: tuple[float, ...] | None) -> DistancePair:
        """The `surface_distances` with another voxel size; None measures in voxels."""
        first, second = self._edges
        steps = spacing or (1.0,) * first.ndim
        return distances_to_edge(first, second, steps), distances_to_edge(second, first, steps)

    @cached_property
    def _edges(self) -> tuple[np.ndarray, np.ndarray]:
        box = bounding_box(self.prediction, self.reference)  # cropping changes no distance
        return mask_edge(self.prediction[box]), mask_edge(self.reference[box])

    def diagonal(self, in_voxels: bool = False) -> float:
        """The length of the image's diagonal, in mm, or in voxels without a voxel size or if `in_voxels`."""
        steps = None if in_voxels else self.spacing
        return math.hypot(*(n * step for n, step in zip(self.reference.shape, steps or (1.0,) * 3)))


class MaskMetric(Metric):
    """Base class of the metrics of one structure of one patient; a subclass declares attributes and overrides `value`.

    Attributes:
        worst: the value for a missed structure and for a false alarm (a structure that only the prediction contains).
            It must be finite and the worst possible value, so that a missed organ never improves a mean. A distance
            does not need this attribute, because its worst value is the length of the image's diagonal.
        accepts_empty_masks: whether `value` is also defined if exactly one mask is empty; a missed structure then has
            this value instead of the worst one.

    Example:
        >>> class VolumeError(MaskMetric):
        ...     name, label, unit, higher_is_better, worst = "volume_error", "VE", "%", False, 1.0
        ...
        ...     def value(self, masks: MaskPair) -> float:
        ...         volumes = masks.prediction.sum(), masks.reference.sum()
        ...         return float(1 - min(volumes) / max(volumes))
        >>> half, whole = np.zeros((4, 4, 1)), np.ones((4, 4, 1))
        >>> half[:2] = 1
        >>> compute_mask_metrics([VolumeError()], half, whole, spacing_mm=None)
        {'volume_error': 0.5, 'status': 'ok'}
    """

    worst: ClassVar[float] = math.nan
    accepts_empty_masks: ClassVar[bool] = False

    def missing_declarations(self) -> list[str]:
        own_rule = type(self).value_of_failure is not MaskMetric.value_of_failure
        has_worst = own_rule or self.unit == DISTANCE or math.isfinite(self.worst)
        return super().missing_declarations() + ["finite worst"] * (not has_worst)

    @abstractmethod
    def value(self, masks: MaskPair) -> float | None:
        """Compute the metric of two masks that both have at least one voxel; a subclass must override this method.

        One mask may be empty only if the metric has `accepts_empty_masks`.

        Returns:
            The value of the metric, or None if the value is unknown. A fraction is in [0, 1]. A distance is in mm if
            the voxel size is known, otherwise in pixels; `compute_mask_metrics` converts pixels.
        """

    def value_of_failure(self, masks: MaskPair) -> float:
        """Return the value that the metric gets if exactly one of the two masks is empty.

        The value of a distance is the length of the image's diagonal, in mm if the voxel size is known, otherwise in
        voxels. The value of any other metric is its attribute `worst`.
        """
        return masks.diagonal() if self.unit == DISTANCE else self.worst


def compute_mask_metrics(
    metrics: Iterable[MaskMetric],
    prediction: Mask,
    reference: Mask,
    spacing_mm: tuple[float, float, float] | None,
    probability: Mask | None = None,
) -> dict[str, object]:
    """Compute several metrics of the predicted and the true mask of one structure of one patient.

    The masks, their voxel size and the errors are those of `MaskPair.from_masks`; D = 1 for a single image.

    Returns:
        One entry per metric, by the metric's name, and "status" (see `MaskPair.status`). A distance has two entries,
        one of which is None: NAME_mm if the voxel size is known, else NAME_percent_of_diagonal, in [0, 100]. A value
        that is not finite becomes None. For the status "missed" or "false_alarm", each metric has its worst value,
        `MaskMetric.value_of_failure`, unless it accepts an empty mask. For "absent", all values are None.

    Raises:
        UserError: if a metric raises an error, or returns a value that is worse than the metric's own worst value.
    """
    metrics = tuple(metrics)
    masks = MaskPair.from_masks(prediction, reference, spacing_mm, probability)
    row: dict[str, object] = {column: None for metric in metrics for column in metric_columns(metric)}
    if masks.status != ABSENT:
        for metric in metrics:
            value, (column, *relative) = _value(metric, masks), metric_columns(metric)
            if relative and masks.spacing is None:
                value, column = value and 100 * value / masks.diagonal(), relative[0]
            row[column] = None if value is None or not math.isfinite(value) else float(value)
    return row | {"status": masks.status}


def _value(metric: MaskMetric, masks: MaskPair) -> float | None:
    """Compute a metric of a pair of masks that are not both empty, and check its value."""
    with errors_of(metric):
        failure = metric.value_of_failure(masks)
        value = metric.value(masks) if masks.status == OK or metric.accepts_empty_masks else failure
        is_worse = value is not None and (value < failure if metric.higher_is_better else value > failure)
    if not math.isfinite(failure) or is_worse:
        raise UserError(
            f"metric '{metric.name}': found {value}, and {failure} for a missed structure, which must be finite and "
            "the worst value; correct it and continue with --resume, the model is saved"
        )
    return value


def bounding_box(*masks: np.ndarray) -> tuple[slice, ...]:
    """The smallest box that contains all True voxels of some masks, as one slice for each axis."""
    box: list[slice] = []
    for axis in range(masks[0].ndim):  # each axis searches only the part that the axes before it have left
        others = tuple(a for a in range(masks[0].ndim) if a != axis)
        is_filled = np.logical_or.reduce([mask[tuple(box)].any(axis=others) for mask in masks])
        filled = np.flatnonzero(is_filled)
        box.append(slice(int(filled[0]), int(filled[-1]) + 1))
    return tuple(box)


def _array(values: Mask) -> np.ndarray:
    return np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values)


def _binary(mask: Mask, name: str) -> np.ndarray:
    array = _array(mask)
    if array.ndim != 3 or not array.size:
        raise ValueError(f"{name} must be (H, W, D), got {array.shape}; an image of one slice has D = 1")
    boolean = array.astype(bool, copy=False)
    if array.dtype != bool and not np.array_equal(array, boolean):
        raise ValueError(f"{name} must hold 0 and 1 only, got values from {array.min()} to {array.max()}")
    return boolean
