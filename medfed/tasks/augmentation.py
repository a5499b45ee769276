"""Random rotation, scaling and flipping of a batch of images, as in section 4.1 of ELCFS."""

from __future__ import annotations

import math

import torch
from monai.networks.layers import AffineTransform
from torch import Tensor


def draw_affine(
    n: int, rng: torch.Generator, max_rotation_deg: float = 15.0, max_scaling: float = 0.15, flip: bool = True
) -> Tensor:
    """Sample n random affine maps of rotation, scaling and flipping.

    Args:
        n: number of maps.
        rng: generator of the random numbers, on the CPU.
        max_rotation_deg: angles are uniform in [-max_rotation_deg, max_rotation_deg] degrees.
        max_scaling: scale factors are uniform in [1 - max_scaling, 1 + max_scaling].
        flip: whether to flip along the first image axis (left-right in slices of volumes) with probability 0.5.

    Returns:
        (n, 2, 3) float64 on the CPU: maps from output to input coordinates in [-1, 1], as `warp` takes them.
    """
    angle, scale, mirror = torch.rand(3, n, generator=rng, dtype=torch.float64)
    angle = (2 * angle - 1) * math.radians(max_rotation_deg)
    scale = 1 + (2 * scale - 1) * max_scaling
    sign = torch.where((mirror < 0.5) & flip, -1.0, 1.0)
    theta = torch.zeros(n, 2, 3, dtype=torch.float64)
    theta[:, 0, 0] = sign * angle.cos() / scale
    theta[:, 0, 1] = -sign * angle.sin() / scale
    theta[:, 1, 0] = angle.sin() / scale
    theta[:, 1, 1] = angle.cos() / scale
    return theta


def warp(image: Tensor, theta: Tensor, mode: str = "bilinear") -> Tensor:
    """Transform each image of a batch by an affine map.

    Outside the image, its edge is repeated: zeros would change the low frequencies that some methods exchange.

    Args:
        image: (B, C, H, W), of any numeric type.
        theta: (B, 2, 3), one map per image, as `draw_affine` returns them.
        mode: interpolation: "bilinear", or "nearest" for labels.

    Returns:
        (B, C, H, W), of the type of `image`.
    """
    transform = AffineTransform(
        mode=mode, normalized=True, padding_mode="border", align_corners=False, reverse_indexing=True
    )
    values = image if image.is_floating_point() else image.float()
    return transform(values, theta.to(values)).to(image.dtype)
