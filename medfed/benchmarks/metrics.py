"""95 % Hausdorff distance (HD95) of two masks, against MONAI, also with masks cropped to their bounding box"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from monai.metrics import compute_hausdorff_distance

from medfed.benchmarks.harness import Row, median_ms
from medfed.metrics.mask_metric import MaskPair
from medfed.metrics.masks.hd95 import HausdorffDistance95

SPACING_MM = (0.6, 0.6, 3.0)
Ellipsoid = tuple[tuple[float, float, float], tuple[int, int, int]]  # radii, and shift of the prediction, in voxels
ELLIPSOIDS: Mapping[str, Ellipsoid] = {
    "prostate": ((37, 29, 6.5), (3, -2, 0)),
    "large": ((60, 50, 9), (4, -3, 0)),
    "tiny": ((1.5, 1.5, 1.5), (40, 0, 0)),
}


def measure(shape: tuple[int, int, int] = (384, 384, 24), repeats: int = 3) -> list[Row]:
    """Processor times for three pairs of ellipsoids, and for masks that fill the volume; differences are in mm."""
    pairs = {
        name: (_ellipsoid(shape, radii, shift), _ellipsoid(shape, radii, (0, 0, 0)))
        for name, (radii, shift) in ELLIPSOIDS.items()
    }
    pairs["full"] = np.ones(shape, bool), np.ones(shape, bool)
    rows = []
    for name, (prediction, reference) in pairs.items():
        filled = np.nonzero(prediction | reference)
        box = tuple(slice(int(index.min()), int(index.max()) + 1) for index in filled)
        functions = [
            partial(_medfed, prediction, reference),
            partial(_monai, prediction, reference),
            partial(_monai, prediction[box], reference[box]),
        ]
        medfed, monai, monai_in_box = median_ms(functions, repeats)
        difference = abs(functions[0]() - functions[1]())
        rows.append(Row(name, "MONAI", medfed, monai, difference=difference))
        rows.append(Row(name, "MONAI in the box", medfed, monai_in_box, difference=difference))
    return rows


def _ellipsoid(shape: tuple[int, ...], radii: tuple[float, ...], shift: tuple[int, ...]) -> np.ndarray:
    steps = [
        (index - n // 2 - moved) / radius
        for index, n, moved, radius in zip(np.indices(shape), shape, shift, radii, strict=True)
    ]
    return sum(step**2 for step in steps) < 1


def _medfed(prediction: np.ndarray, reference: np.ndarray) -> float:
    return HausdorffDistance95().value(MaskPair.from_masks(prediction, reference, SPACING_MM))


def _monai(prediction: np.ndarray, reference: np.ndarray) -> float:
    first, second = (torch.from_numpy(mask)[None, None] for mask in (prediction, reference))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # MONAI warns of an argument that it passes to itself
        return float(compute_hausdorff_distance(first, second, True, percentile=95, spacing=SPACING_MM))
