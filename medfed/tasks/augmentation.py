"""Random rotation, scaling and flipping of a batch (ELCFS section 4.1 names these three)."""

from __future__ import annotations

import math

import torch
from monai.networks.layers import AffineTransform
from torch import Tensor


def draw_affine(
    n: int, rng: torch.Generator, max_rotation_deg: float = 15.0, max_scaling: float = 0.15, flip: bool = True
) -> Tensor:
    """Parameters of n random maps, drawn on the CPU: (n, 2, 3), from output to input positions in [-1, 1].

    Args:
        max_rotation_deg: angles are uniform in plus or minus this.
        max_scaling: sizes are uniform in 1 plus or minus this.
        flip: mirror along the first image axis (left-right in a slice of a scanner) with probability one half.
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
    """Map images (B, C, H, W) by n = B maps of `draw_affine`; their type stays, and edges are repeated.

    Repeating the edge, rather than filling with zeros, keeps the low frequencies that sites exchange those of an image.

    Args:
        mode: "bilinear", or "nearest" for labels.
    """
    move = AffineTransform(
        mode=mode, normalized=True, padding_mode="border", align_corners=False, reverse_indexing=True
    )
    values = image if image.is_floating_point() else image.float()
    return move(values, theta.to(values)).to(image.dtype)
