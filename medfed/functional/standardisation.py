"""Standardise images: subtract a mean from each channel and divide by a standard deviation.

The setting `data.standardise` decides from which pixels the two numbers are computed. Below are the words for which the
numbers depend on images; `medfed.tasks.task.Task.standardise` applies them.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Names of the network's entries that hold the constants of `data.standardise: dataset`, each (C,).
INPUT_LAYER = "input_scale"
INPUT_MEAN, INPUT_STD = f"{INPUT_LAYER}.mean", f"{INPUT_LAYER}.std"


def standardise_slices(image: Tensor) -> Tensor:
    """Scale each channel of each image to mean 0 and standard deviation 1, as MONAI's NormalizeIntensity does.

    Args:
        image: (B, C, H, W), floating point.

    Returns:
        (B, C, H, W). A constant channel becomes 0.
    """
    centred = image - image.mean(dim=(-2, -1), keepdim=True)
    spread = image.std(dim=(-2, -1), keepdim=True, unbiased=False)
    return centred / torch.where(spread == 0, 1.0, spread)


def standardise_by(image: Tensor, moments: Tensor) -> Tensor:
    """Subtract a given mean from each channel of each image, and divide by a given standard deviation.

    Args:
        image: (B, C, H, W), floating point.
        moments: (B, 2, C) or (1, 2, C), the mean and the standard deviation of each channel, as `image_moments` returns
            them. They are converted to the dtype and device of the images.

    Returns:
        (B, C, H, W).
    """
    mean, std = moments.to(image)[..., None, None].unbind(dim=1)
    return (image - mean) / std


def image_moments(image: Tensor, as_one_volume: bool = False) -> Tensor:
    """Compute the mean and the standard deviation of each channel, over each image or over all images together.

    Args:
        image: (B, C, H, W), floating point.
        as_one_volume: whether the B images are the slices of one volume. All slices then get the same two numbers per
            channel, which are computed over all pixels of the volume.

    Returns:
        (B, 2, C) in the dtype of the images: the means and the standard deviations, computed in float64. The standard
        deviation of a constant channel is 1, so that standardising makes the channel 0.
    """
    dims = (0, 2, 3) if as_one_volume else (2, 3)
    variance, mean = torch.var_mean(image.double(), dim=dims, correction=0)
    moments = torch.stack([mean, positive_std(variance)], dim=-2).to(image.dtype)
    return moments.expand(len(image), -1, -1) if as_one_volume else moments


def positive_std(variance: Tensor) -> Tensor:
    """Return the square root of each variance, or 1 for a variance that is not above 0.

    Args:
        variance: any shape. Variances may be negative if noise was added to them.

    Returns:
        The same shape; all numbers are above 0.
    """
    return torch.where(variance > 0, variance.clamp(min=0).sqrt(), 1.0)
