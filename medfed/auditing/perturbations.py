"""Perturbed copies of an image, as the same image could exist in another file or at another hospital."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

NOISE = 0.03  # standard deviation of the noise, for intensities in [0, 1]
GAIN = 0.05  # largest relative change of the brightness
QUALITY = 75  # JPEG quality, 1 to 95
SHIFT = 0.03  # shift as a fraction of the shorter side
Perturbation = Callable[[Tensor, torch.Generator], Tensor]


def perturbations(mirror_axis: int) -> dict[str, Perturbation]:
    """Functions that make a changed copy of an image (C, H, W) in [0, 1] with a CPU random generator, by name.
    `mirror_axis` is the axis along which "mirrored" flips the image: -1 (W) or -2 (H)."""
    return {
        "noise": add_noise,
        "mirrored": lambda image, rng: image.flip(mirror_axis),
        "shifted": random_shift,
        "JPEG": lambda image, rng: jpeg_compressed(image),
        "copy": degraded_copy,
    }


def add_noise(image: Tensor, rng: torch.Generator) -> Tensor:
    """Gaussian noise with standard deviation 0.03, clipped to [0, 1]."""
    return (image + NOISE * torch.randn(image.shape, generator=rng)).clamp(0, 1)


def random_shift(image: Tensor, rng: torch.Generator) -> Tensor:
    """Shift along H and W, in random directions, by 3 % of the shorter side (at least one pixel); edge pixels fill the
    border."""
    reach = max(1, round(SHIFT * min(image.shape[1:])))
    down, right = (2 * reach * torch.randint(2, (2,), generator=rng)).tolist()
    wide = F.pad(image[None], (reach,) * 4, mode="replicate")[0]
    return wide[:, down : down + image.shape[1], right : right + image.shape[2]]


def jpeg_compressed(image: Tensor) -> Tensor:
    """Compress (C, H, W) in [0, 1] with JPEG at quality 75: three channels as RGB, otherwise each channel as grey."""
    pixels = (image * 255).round().to(torch.uint8).numpy()
    if len(pixels) == 3:
        return torch.from_numpy(_through_jpeg(pixels.transpose(1, 2, 0)).transpose(2, 0, 1).copy()).float() / 255
    return torch.from_numpy(np.stack([_through_jpeg(channel) for channel in pixels])).float() / 255


def degraded_copy(image: Tensor, rng: torch.Generator) -> Tensor:
    """Multiply by a random number in [0.95, 1.05], then `random_shift`, `add_noise` and `jpeg_compressed`."""
    gain = 1 + GAIN * (2 * torch.rand((), generator=rng) - 1)
    return jpeg_compressed(add_noise(random_shift((gain * image).clamp(0, 1), rng), rng))


def _through_jpeg(pixels: np.ndarray) -> np.ndarray:
    """Compress uint8 pixels (H, W) or (H, W, 3) with JPEG and decode them again."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=QUALITY)
    return np.asarray(Image.open(file))
