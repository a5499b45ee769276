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
    """Draw n random affine maps, each of a rotation, a scaling and possibly a flip, for `warp`.

    The angle is uniform in +-max_rotation_deg, the scale factor in 1 +- max_scaling; above 1 enlarges the content.
    `flip` mirrors along H with probability 0.5: left-right in prepared slices of volumes, upside down in 2-D image
    files.

    Returns:
        (n, 2, 3) float64 on the CPU, from output to input coordinates. Coordinates are in the order (H, W), and run
        from -1 to 1 across the image.
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
    """Transform each image (B, C, H, W) by its own map (B, 2, 3) of `draw_affine`; use "nearest" for masks.

    A pixel that comes from outside the image takes the value of the nearest edge pixel. Zeros would change the low
    frequencies of the image, which some methods exchange between sites.
    """
    values = image if image.is_floating_point() else image.float()
    theta = torch.cat([theta[:, :, :2].flip(1, 2), theta[:, :, 2:].flip(1)], dim=2)  # PyTorch's order is (W, H)
    # MONAI's AffineTransform makes the same two calls, but waits for the GPU before them.
    grid = F.affine_grid(to_device(theta.to(values.dtype), values.device), list(values.shape), align_corners=False)
    warped = F.grid_sample(values, grid, mode, padding_mode="border", align_corners=False)
    return warped.to(image.dtype)
