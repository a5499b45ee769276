"""Score one structure of one patient: Dice, and surface distances that a missed organ cannot flatter.

MONAI's edges and distances are used as they are, once for all measures. What MONAI lacks stands here: a rule for empty
masks (its HD95 is NaN for a missed organ, and its mean skips NaN), the unit in the name, and the pooled HD95 of the
papers' code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from monai.metrics.utils import get_mask_edges, get_surface_distance

Mask = torch.Tensor | np.ndarray


@dataclass(frozen=True)
class Score:
    """What one prediction is worth. Distances are in mm where the spacing is known, else in pixels; the rest is None.

    dice: in [0, 1].
    hd: Hausdorff distance. hd95: the larger of the two directed 95th percentiles (MONAI). assd: mean of both surfaces.
    hd95_pooled_vx: 95th percentile of both directed sets together, in voxels whatever the spacing (medpy without
        spacing: what the released code of ELCFS computes). Always given beside the others, so that one can compare.
    status: "ok"; "missed" (the reference has the organ, the prediction nothing) and "false_alarm" (the reverse): Dice 0
        and every distance the diagonal of the image; "absent" (neither has it): None everywhere.
    """

    dice: float | None
    hd_mm: float | None
    hd95_mm: float | None
    assd_mm: float | None
    hd_px: float | None
    hd95_px: float | None
    assd_px: float | None
    hd95_pooled_vx: float | None
    status: str


def score(prediction: Mask, reference: Mask, spacing_mm: tuple[float, float, float] | None) -> Score:
    """Compare a predicted with a reference mask of one patient and structure.

    Args:
        prediction, reference: (H, W, D) of 0 and 1, tensor or array, any device. D = 1 is a picture: distances in 2-D.
        spacing_mm: voxel size along H, W, D; None where unknown, and then nobody gets millimetres.

    Raises:
        ValueError: if a mask is not (H, W, D), holds more than 0 and 1, shapes differ, or the spacing is not positive.
    """
    predicted, true = _binary(prediction, "prediction"), _binary(reference, "reference")
    if predicted.shape != true.shape:
        raise ValueError(f"prediction {predicted.shape} and reference {true.shape} must have the same shape")
    spacing = _spacing(spacing_mm)
    status = _status(predicted, true)
    if status == "absent":
        return Score(*[None] * 8, status)
    if predicted.shape[2] == 1:
        predicted, true, spacing = predicted[..., 0], true[..., 0], spacing and spacing[:2]
    if status == "ok":
        distances, pooled_vx = _distances(predicted, true, spacing)
    else:
        distances, pooled_vx = (diagonal(true.shape, spacing),) * 3, diagonal(true.shape)
    unknown = (None, None, None)
    in_units = (*distances, *unknown) if spacing else (*unknown, *distances)
    return Score(dice(predicted, true), *in_units, pooled_vx, status)


def dice(prediction: Mask, reference: Mask) -> float | None:
    """2|A and B| / (|A| + |B|) of two masks of one shape; None where both are empty."""
    predicted, true = _array(prediction).astype(bool), _array(reference).astype(bool)
    size = int(predicted.sum()) + int(true.sum())
    return 2 * int((predicted & true).sum()) / size if size else None


def diagonal(shape: tuple[int, ...], spacing: tuple[float, ...] | None = None) -> float:
    """The image's diagonal, longer than any distance inside it; in the unit of `spacing`, else in voxels."""
    return math.hypot(*(n * step for n, step in zip(shape, spacing or (1.0,) * len(shape))))


def _distances(predicted: np.ndarray, true: np.ndarray, spacing: tuple[float, ...] | None):
    """((HD, HD95, ASSD) in the unit of `spacing`, pooled HD95 in voxels) of two masks that are not empty."""
    box = _bounding_box(predicted | true)  # beyond it nothing is set, so no edge and no distance changes
    edges = get_mask_edges(predicted[box], true[box], crop=False)
    there, back = _directed(edges, spacing)
    distances = (
        float(max(there.max(), back.max())),
        float(max(np.percentile(there, 95), np.percentile(back, 95))),
        float(np.concatenate([there, back]).mean()),
    )
    if spacing and len(set(spacing)) > 1:  # voxels of unequal sides: ask again in voxels
        there, back = _directed(edges, None)
    pooled = float(np.percentile(np.concatenate([there, back]), 95))
    return distances, pooled / spacing[0] if spacing and len(set(spacing)) == 1 else pooled


def _directed(edges: tuple[np.ndarray, np.ndarray], spacing: tuple[float, ...] | None) -> tuple[np.ndarray, np.ndarray]:
    """Distances from each edge voxel of one mask to the nearest of the other, both ways, float64."""
    first, second = edges
    there = get_surface_distance(first, second, spacing=spacing)
    back = get_surface_distance(second, first, spacing=spacing)
    return there.astype(np.float64), back.astype(np.float64)


def _bounding_box(mask: np.ndarray) -> tuple[slice, ...]:
    axes = range(mask.ndim)
    filled = (np.flatnonzero(mask.any(axis=tuple(a for a in axes if a != axis))) for axis in axes)
    return tuple(slice(int(where[0]), int(where[-1]) + 1) for where in filled)


def _status(predicted: np.ndarray, true: np.ndarray) -> str:
    if true.any():
        return "ok" if predicted.any() else "missed"
    return "false_alarm" if predicted.any() else "absent"


def _array(mask: Mask) -> np.ndarray:
    return mask.detach().cpu().numpy() if isinstance(mask, torch.Tensor) else np.asarray(mask)


def _binary(mask: Mask, name: str) -> np.ndarray:
    array = _array(mask)
    if array.ndim != 3 or not array.size:
        raise ValueError(f"{name} must be (H, W, D), got {array.shape}; a picture has D = 1")
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
