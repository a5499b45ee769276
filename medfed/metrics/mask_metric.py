"""Metrics of one structure of one patient: a predicted mask against a reference mask.

Edges and distances are those of MONAI, computed once for all metrics of a pair of masks. What MONAI lacks is here: a
rule for empty masks (its HD95 is NaN for a missed organ, and its mean skips NaN), and the unit in the column's name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from monai.metrics.utils import get_mask_edges, get_surface_distance

from medfed.core.errors import UserError
from medfed.metrics.metric import DISTANCE, Metric, all_columns

Mask = torch.Tensor | np.ndarray
DistancePair = tuple[np.ndarray, np.ndarray]
OK, MISSED, FALSE_ALARM, ABSENT = STATUSES = ("ok", "missed", "false_alarm", "absent")


@dataclass(frozen=True)
class MaskPair:
    """A predicted and a reference mask of one patient and structure.

    prediction, reference: bool arrays of one shape, (H, W, D), or (H, W) for an image of one slice.
    spacing: voxel size in mm along each axis, or None where it is unknown.
    """

    prediction: np.ndarray
    reference: np.ndarray
    spacing: tuple[float, ...] | None

    @classmethod
    def from_masks(cls, prediction: Mask, reference: Mask, spacing_mm: tuple[float, float, float] | None) -> MaskPair:
        """Check the masks and drop the third axis of an image of one slice.

        Args:
            prediction, reference: (H, W, D) of 0 and 1, tensor or array, on any device.
            spacing_mm: voxel size along H, W, D; None where unknown.

        Raises:
            ValueError: if a mask is not (H, W, D) or holds more than 0 and 1, if shapes differ, or if a spacing is not
                positive.
        """
        predicted, true = _binary(prediction, "prediction"), _binary(reference, "reference")
        if predicted.shape != true.shape:
            raise ValueError(f"prediction {predicted.shape} and reference {true.shape} must have the same shape")
        spacing = _spacing(spacing_mm)
        if predicted.shape[2] == 1:
            return cls(predicted[..., 0], true[..., 0], spacing and spacing[:2])
        return cls(predicted, true, spacing)

    @cached_property
    def status(self) -> str:
        """ "ok"; "missed": reference without prediction; "false_alarm": the reverse; "absent": both are empty."""
        if self.reference.any():
            return OK if self.prediction.any() else MISSED
        return FALSE_ALARM if self.prediction.any() else ABSENT

    @cached_property
    def surface_distances(self) -> DistancePair:
        """Distances (float64) from each edge voxel of the prediction to the reference's edge, and the other way.

        In mm where the spacing is known, else in pixels. Both masks must have a voxel.
        """
        return self._directed(self.spacing)

    @cached_property
    def surface_distances_in_voxels(self) -> DistancePair:
        """The same in voxels, whatever the spacing."""
        return self.surface_distances if self.spacing is None else self._directed(None)

    def diagonal(self, in_voxels: bool = False) -> float:
        """The image's diagonal, longer than any distance in it: in mm where the spacing is known, else in pixels."""
        return image_diagonal(self.reference.shape, None if in_voxels else self.spacing)

    @cached_property
    def _edges(self) -> tuple[np.ndarray, np.ndarray]:
        box = _bounding_box(self.prediction | self.reference)  # nothing is set beyond it, so no distance changes
        return get_mask_edges(self.prediction[box], self.reference[box], crop=False)

    def _directed(self, spacing: tuple[float, ...] | None) -> DistancePair:
        first, second = self._edges
        there = np.asarray(get_surface_distance(first, second, spacing=spacing))
        back = np.asarray(get_surface_distance(second, first, spacing=spacing))
        return there.astype(np.float64), back.astype(np.float64)


class MaskMetric(Metric):
    """A metric of one structure of one patient.

    worst: the value of a missed structure and of a false alarm, so that neither improves a mean: finite, and no value
        may be worse. A distance takes the diagonal of the image, and needs no `worst`.
    """

    worst: ClassVar[float]

    def missing_declarations(self) -> list[str]:
        own_rule = type(self).value_of_failure is not MaskMetric.value_of_failure
        worst = getattr(self, "worst", None)
        is_finite = isinstance(worst, int | float) and math.isfinite(worst)
        has_worst = own_rule or self.unit == DISTANCE or is_finite
        has_value = type(self).value is not MaskMetric.value
        return (
            super().missing_declarations() + ["finite worst"] * (not has_worst) + ["function value"] * (not has_value)
        )

    def value(self, masks: MaskPair) -> float | None:
        """The metric of two masks that both have a voxel; None where it is unknown."""
        raise NotImplementedError

    def value_of_failure(self, masks: MaskPair) -> float:
        """The value where exactly one of the two masks is empty."""
        return masks.diagonal() if self.unit == DISTANCE else self.worst


def compute_mask_metrics(
    metrics: Iterable[MaskMetric], prediction: Mask, reference: Mask, spacing_mm: tuple[float, float, float] | None
) -> dict[str, object]:
    """Compute metrics of one patient and structure; arguments and errors as `MaskPair.from_masks`.

    Returns:
        A value per column (`medfed.metrics.metric.columns`), and `status`. A distance is in its mm column where the
        spacing is known, and in its px column where not; the other one is None. All are None where the structure is
        absent from both masks. A value that is not finite becomes None.

    Raises:
        UserError: if a metric raises an error, or gives a value that is worse than its value of a missed structure.
    """
    metrics = tuple(metrics)
    masks = MaskPair.from_masks(prediction, reference, spacing_mm)
    row: dict[str, object] = {column.key: None for column in all_columns(metrics)}
    if masks.status != ABSENT:
        unit = "px" if masks.spacing is None else "mm"
        for metric in metrics:
            value = _value(metric, masks)
            key = f"{metric.name}_{unit}" if metric.unit == DISTANCE else metric.name
            row[key] = None if value is None or not math.isfinite(value) else float(value)
    return row | {"status": masks.status}


def _value(metric: MaskMetric, masks: MaskPair) -> float | None:
    try:
        failure = metric.value_of_failure(masks)
        value = metric.value(masks) if masks.status == OK else failure
        is_worse = value is not None and (value < failure if metric.higher_is_better else value > failure)
    except Exception as error:  # code from outside medfed may raise anything
        raise UserError(f"metric '{metric.name}': {type(error).__name__}: {error}; correct it and go on with --resume, "
                        "the model is kept") from error
    if not math.isfinite(failure) or is_worse:
        raise UserError(f"metric '{metric.name}': found {value}, and {failure} for a missed structure, which must be "
                        "finite and the worst; correct it and go on with --resume, the model is kept")
    return value


def image_diagonal(shape: tuple[int, ...], spacing: tuple[float, ...] | None = None) -> float:
    """The length of an image's diagonal in the unit of `spacing`, or in voxels."""
    return math.hypot(*(n * step for n, step in zip(shape, spacing or (1.0,) * len(shape))))


def _bounding_box(mask: np.ndarray) -> tuple[slice, ...]:
    axes = range(mask.ndim)
    filled = (np.flatnonzero(mask.any(axis=tuple(a for a in axes if a != axis))) for axis in axes)
    return tuple(slice(int(where[0]), int(where[-1]) + 1) for where in filled)


def _binary(mask: Mask, name: str) -> np.ndarray:
    array = np.asarray(mask.detach().cpu() if isinstance(mask, torch.Tensor) else mask)
    if array.ndim != 3 or not array.size:
        raise ValueError(f"{name} must be (H, W, D), got {array.shape}; an image of one slice has D = 1")
    boolean = array.astype(bool)
    if array.dtype != bool and not np.array_equal(array, boolean):
        raise ValueError(f"{name} must hold 0 and 1 only, got values from {array.min()} to {array.max()}")
    return boolean


def _spacing(spacing_mm: tuple[float, ...] | None) -> tuple[float, ...] | None:
    if spacing_mm is None:
        return None
    spacing = tuple(float(step) for step in spacing_mm)
    if len(spacing) != 3 or not all(math.isfinite(step) and step > 0 for step in spacing):
        raise ValueError(f"spacing_mm must be three positive numbers along H, W, D, or None, got {spacing}")
    return spacing
