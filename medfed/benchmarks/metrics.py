"""Time of the distances between two masks, compared with MONAI's 95 % Hausdorff distance (HD95)."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from monai.metrics import compute_hausdorff_distance
from torch import Tensor

from medfed.metrics.mask_metric import MaskPair, compute_mask_metrics
from medfed.metrics.masks.assd import AverageSurfaceDistance
from medfed.metrics.masks.hd import HausdorffDistance
from medfed.metrics.masks.hd95 import HausdorffDistance95
from medfed.metrics.masks.hd95_pooled import PooledHausdorffDistance95

SPACING_MM = (0.6, 0.6, 3.0)
RADII = {"prostate": (37, 29, 6.5), "large": (60, 50, 9), "tiny": (1.5, 1.5, 1.5)}  # voxels
SHIFT = {"prostate": (3, -2, 0), "large": (4, -3, 0), "tiny": (40, 0, 0)}  # of the prediction, in voxels


def time_metrics(shape: tuple[int, int, int] = (384, 384, 24), repeats: int = 3) -> dict[str, dict[str, float]]:
    """Time medfed's HD95, its four surface distances together, and MONAI's HD95, for three pairs of ellipsoids.

    Returns:
        For each pair the median CPU times `hd95_ms`, `all_ms` (the four distances), `monai_ms` and `monai_box_ms`
        (in the masks' bounding box); `times_faster` and `times_faster_box`, the last two divided by `hd95_ms`; and
        `difference_mm` between medfed's and MONAI's HD95. The masks of the pair "full" fill the volume.
    """
    pairs = {name: _ellipsoids(shape, name) for name in RADII}
    pairs["full"] = np.ones(shape, bool), np.ones(shape, bool)
    return {name: _time_pair(prediction, reference, repeats) for name, (prediction, reference) in pairs.items()}


def _ellipsoids(shape: tuple[int, int, int], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Two masks of the same ellipsoid, (H, W, D) bool; the first one is shifted."""
    grid = np.indices(shape).astype(float)

    def ellipsoid(shift: tuple[int, int, int]) -> np.ndarray:
        steps = (grid[a] - shape[a] // 2 - shift[a] for a in range(3))
        return sum((step / radius) ** 2 for step, radius in zip(steps, RADII[name], strict=True)) < 1

    return ellipsoid(SHIFT[name]), ellipsoid((0, 0, 0))


def _time_pair(prediction: np.ndarray, reference: np.ndarray, repeats: int) -> dict[str, float]:
    """The times and differences of `time_metrics` for one pair of masks."""
    whole = [torch.from_numpy(mask)[None, None] for mask in (prediction, reference)]
    filled = np.nonzero(prediction | reference)
    box = [slice(int(index.min()), int(index.max()) + 1) for index in filled]
    cropped = [mask[:, :, box[0], box[1], box[2]].clone() for mask in whole]
    metrics = [HausdorffDistance(), HausdorffDistance95(), AverageSurfaceDistance(), PooledHausdorffDistance95()]

    def hd95() -> float:
        return HausdorffDistance95().value(MaskPair.from_masks(prediction, reference, SPACING_MM))

    median_ms = _median_ms(
        {
            "hd95": hd95,
            "all": lambda: compute_mask_metrics(metrics, prediction, reference, SPACING_MM),
            "monai": lambda: _monai_hd95(*whole),
            "monai_box": lambda: _monai_hd95(*cropped),
        },
        repeats,
    )
    return {
        **{f"{name}_ms": value for name, value in median_ms.items()},
        "times_faster": median_ms["monai"] / median_ms["hd95"],
        "times_faster_box": median_ms["monai_box"] / median_ms["hd95"],
        "difference_mm": abs(hd95() - _monai_hd95(*whole)),
    }


def _monai_hd95(prediction: Tensor, reference: Tensor) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # MONAI warns of an argument that it passes to itself
        distance = compute_hausdorff_distance(
            prediction, reference, include_background=True, percentile=95, spacing=SPACING_MM
        )
    return float(distance)


def _median_ms(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median CPU milliseconds of each function, called in turn; the first call of each is not counted."""
    times_ms: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats + 1):  # the first time of each warms up
        for name, function in functions.items():
            start = time.process_time()
            function()
            times_ms[name].append(1e3 * (time.process_time() - start))
    return {name: statistics.median(times[1:]) for name, times in times_ms.items()}


def metrics_table(result: dict[str, dict[str, float]]) -> str:
    head = "masks          HD95     all 4   MONAI HD95   ratio   in the box   ratio   difference"
    lines = [
        f"{name:9} {t['hd95_ms']:6.1f} ms {t['all_ms']:6.1f} ms {t['monai_ms']:9.1f} ms {t['times_faster']:7.1f} "
        f"{t['monai_box_ms']:9.1f} ms {t['times_faster_box']:7.1f} {t['difference_mm']:9.1e} mm"
        for name, t in result.items()
    ]
    return "\n".join(["surface distances of two masks, 384 x 384 x 24 voxels", head, *lines])
