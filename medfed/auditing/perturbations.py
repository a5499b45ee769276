"""The same scene once more, as another file, another day or another hospital would have it."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

NOISE, GAIN, QUALITY, SHIFT = 0.03, 0.05, 75, 0.03  # standard deviation, share, JPEG's scale, share of the side
Perturbation = Callable[[Tensor, torch.Generator], Tensor]


def perturbations(mirror_axis: int) -> dict[str, Perturbation]:
    """By name: each takes an image (C, H, W) in [0, 1] and a CPU generator, and gives an image of that shape and range.

    mirror_axis: the axis from left to right.
    """
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
    """By 3 % of the side along both axes, each either way; the border goes on by its own value."""
    reach = max(1, round(SHIFT * min(image.shape[1:])))
    down, right = (2 * reach * torch.randint(2, (2,), generator=rng)).tolist()
    wide = functional.pad(image[None], (reach,) * 4, mode="replicate")[0]
    return wide[:, down : down + image.shape[1], right : right + image.shape[2]]


def jpeg_compressed(image: Tensor) -> Tensor:
    """Through JPEG of quality 75; channels by themselves unless there are three."""
    pixels = (image * 255).round().to(torch.uint8).numpy()
    if len(pixels) == 3:
        return torch.from_numpy(_through_jpeg(pixels.transpose(1, 2, 0)).transpose(2, 0, 1).copy()).float() / 255
    return torch.from_numpy(np.stack([_through_jpeg(channel) for channel in pixels])).float() / 255


def degraded_copy(image: Tensor, rng: torch.Generator) -> Tensor:
    """Up to 5 % brighter or darker, shifted, noisy, and through JPEG."""
    gain = 1 + GAIN * (2 * torch.rand((), generator=rng) - 1)
    return jpeg_compressed(add_noise(random_shift((gain * image).clamp(0, 1), rng), rng))


def _through_jpeg(pixels: np.ndarray) -> np.ndarray:
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "JPEG", quality=QUALITY)
    return np.asarray(Image.open(held))
