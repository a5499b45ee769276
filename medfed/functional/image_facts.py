"""Numbers that describe an image, by which a hospital compares its images with those of a federation's sites."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from medfed.functional.quantiles import quantiles

AS_READ = (
    "height",
    "width",
    "slices",
    "spacing_height_mm",
    "spacing_width_mm",
    "spacing_slices_mm",
    "intensity_p5",
    "intensity_p50",
    "intensity_p95",
)
PREPARED = ("brightness", "contrast", "sharpness", "low_frequency_amplitude")
NAMES = (*AS_READ, *PREPARED)
MAX_SAMPLED_VOXELS = 100_000  # of which the percentiles are computed
LOW_FREQUENCY = 0.1  # half the side of the low-frequency window, as a fraction of the image's side


def facts_as_read(image: Tensor, spacing_mm: Sequence[float] | None) -> Tensor:
    """Return the numbers of `AS_READ` for an image (C, H, W, D) in the unit of its file, (9,) float64.

    The voxel sizes along H, W, D are NaN without `spacing_mm`. The percentiles are those of all channels together.
    """
    values = image.flatten()
    values = values[:: max(1, len(values) // MAX_SAMPLED_VOXELS)].double().contiguous()
    sizes = [float(side) for side in image.shape[1:]]
    spacing = list(spacing_mm) if spacing_mm else [math.nan] * 3
    return torch.tensor([*sizes, *spacing, *quantiles(values, (0.05, 0.5, 0.95)).tolist()], dtype=torch.float64)


def facts_of_prepared(slices: Tensor) -> Tensor:
    """Return the numbers of `PREPARED` for slices (D, C, H, W) in [0, 1], channels averaged, (4,) float64.

    In order: the mean, the standard deviation, the mean absolute difference of neighbouring pixels, and the mean of
    log(1 + amplitude) in the low-frequency window that ELCFS exchanges.
    """
    grey = slices.double().mean(1)
    differences = torch.cat([grey.diff(dim=1).abs().flatten(), grey.diff(dim=2).abs().flatten()])
    amplitude = torch.fft.fftshift(torch.fft.fft2(grey).abs(), dim=(1, 2))
    half = max(1, int(LOW_FREQUENCY * min(grey.shape[1:])))
    middle = [side // 2 for side in grey.shape[1:]]
    window = amplitude[:, middle[0] - half : middle[0] + half + 1, middle[1] - half : middle[1] + half + 1]
    numbers = (grey.mean(), grey.std(correction=0), differences.mean(), window.log1p().mean())
    return torch.stack(numbers)
