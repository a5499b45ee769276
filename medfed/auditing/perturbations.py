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


def perturbations(mirror_axis: int) -> dict[str, Callable[[Tensor, torch.Generator], Tensor]]:
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
    return (image + NOISE * torch.randn(image.shape, generator=rng)).clamp(0, 1)


def random_shift(image: Tensor, rng: torch.Generator) -> Tensor:
    """Shift along H and W in random directions, at least one pixel; edge pixels fill the border."""
    reach = max(1, round(SHIFT * min(image.shape[1:])))
    down, right = (2 * reach * torch.randint(2, (2,), generator=rng)).tolist()
    wide = F.pad(image[None], (reach,) * 4, mode="replicate")[0]
    return wide[:, down : down + image.shape[1], right : right + image.shape[2]]


def jpeg_compressed(image: Tensor) -> Tensor:
    """Compress (C, H, W) in [0, 1]: three channels as RGB, otherwise each channel as grey."""
    pixels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    parts = [pixels] if pixels.shape[2] == 3 else np.split(pixels, pixels.shape[2], axis=2)
    files = [io.BytesIO() for _ in parts]
    for part, file in zip(parts, files, strict=True):
        Image.fromarray(part.squeeze()).save(file, "JPEG", quality=QUALITY)
    decoded = np.dstack([np.asarray(Image.open(file)) for file in files])
    return torch.from_numpy(decoded).permute(2, 0, 1).contiguous().float() / 255


def degraded_copy(image: Tensor, rng: torch.Generator) -> Tensor:
    """Change the brightness by a random factor, then shift, add noise and compress."""
    gain = 1 + GAIN * (2 * torch.rand((), generator=rng) - 1)
    return jpeg_compressed(add_noise(random_shift((gain * image).clamp(0, 1), rng), rng))
