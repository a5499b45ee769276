"""Standardise images; `data.standardise` decides from which pixels the mean and the standard deviation are computed."""

from __future__ import annotations

import torch
from torch import Tensor

# Names of the network's entries that hold the constants of `data.standardise: dataset`, each (C,).
INPUT_LAYER = "input_scale"
INPUT_MEAN, INPUT_STD = f"{INPUT_LAYER}.mean", f"{INPUT_LAYER}.std"


def standardise_slices(image: Tensor) -> Tensor:
    """Scale each channel of images (B, C, H, W) to mean 0 and standard deviation 1, as MONAI's NormalizeIntensity does.

    A constant channel becomes 0. ValueError for volumes (B, C, X, Y, Z), which are not slices.
    """
    if image.dim() != 4:
        raise ValueError(f"expected slices (B, C, H, W), got {tuple(image.shape)}")
    centred = image - image.mean(dim=(-2, -1), keepdim=True)
    spread = image.std(dim=(-2, -1), keepdim=True, unbiased=False)
    return centred / torch.where(spread == 0, 1.0, spread)


def standardise_by(image: Tensor, moments: Tensor) -> Tensor:
    """Subtract a given mean from each channel of each image, and divide by a given standard deviation.

    Args:
        image: (B, C, H, W), or volumes (B, C, X, Y, Z); floating point.
        moments: (B, 2, C) or (1, 2, C), the means and the standard deviations, as `image_moments` returns them.
    """
    mean, std = moments.to(image).reshape(*moments.shape, *[1] * (image.dim() - 2)).unbind(dim=1)
    return (image - mean) / std


def image_moments(image: Tensor, as_one_volume: bool = False) -> Tensor:
    """Compute the mean and the standard deviation of each channel, over each image or over all images together.

    Args:
        image: (B, C, H, W), or volumes (B, C, X, Y, Z); floating point.
        as_one_volume: whether the B images are the slices of one volume, which share their two numbers per channel.

    Returns:
        (B, 2, C) in the dtype of the images: the means and the standard deviations, computed in float64. The standard
        deviation of a constant channel is 1, so that standardising makes the channel 0.
    """
    dims = tuple(range(2, image.dim()))
    dims = (0, *dims) if as_one_volume else dims
    variance, mean = torch.var_mean(image.double(), dim=dims, correction=0)
    moments = torch.stack([mean, positive_std(variance)], dim=-2).to(image.dtype)
    return moments.expand(len(image), -1, -1) if as_one_volume else moments


def positive_std(variance: Tensor) -> Tensor:
    """Return the square root of each variance, or 1 where it is not above 0 (noise can make a variance negative)."""
    return torch.where(variance > 0, variance.clamp(min=0).sqrt(), 1.0)
