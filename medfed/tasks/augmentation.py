"""Random rotation, scaling and flipping of a batch of images, as in section 4.1 of ELCFS."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from medfed.core.device import to_device


def draw_affine(
    n: int, rng: torch.Generator, max_rotation_deg: float = 15.0, max_scaling: float = 0.15, flip: bool = True
) -> Tensor:
    """Draw n random affine maps, each of a rotation, a scaling and possibly a flip.

    Args:
        n: number of maps.
        rng: generator of the random numbers, on the CPU.
        max_rotation_deg: the angles are uniform in [-max_rotation_deg, max_rotation_deg] degrees.
        max_scaling: the scale factors are uniform in [1 - max_scaling, 1 + max_scaling]. A factor above 1 enlarges the
            image content.
        flip: whether each map also mirrors the image along its axis H, with probability 0.5. H is the left-right axis
            in prepared slices of volumes, and the vertical axis in 2-D image files.

    Returns:
        (n, 2, 3) float64 on the CPU, for `warp`. A map converts output coordinates to input coordinates. Coordinates
        are in the order (H, W), and run from -1 to 1 across the image.
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
    """Transform each image of a batch by its own affine map.

    A pixel that comes from outside the image takes the value of the nearest edge pixel. Zeros would change the low
    frequencies of the image, which some methods exchange between sites.

    Args:
        image: (B, C, H, W), of any numeric type.
        theta: (B, 2, 3), one map per image from output to input coordinates in [-1, 1], as `draw_affine` returns them.
        mode: interpolation: "bilinear", or "nearest" for masks.

    Returns:
        (B, C, H, W), a new tensor of the type of `image`.
    """
    values = image if image.is_floating_point() else image.float()
    theta = torch.cat([theta[:, :, :2].flip(1, 2), theta[:, :, 2:].flip(1)], dim=2)  # PyTorch's order is (W, H)
    # MONAI's AffineTransform makes the same two calls, but waits for the GPU before them.
    grid = F.affine_grid(to_device(theta.to(values.dtype), values.device), list(values.shape), align_corners=False)
    warped = F.grid_sample(values, grid, mode, padding_mode="border", align_corners=False)
    return warped.to(image.dtype)
