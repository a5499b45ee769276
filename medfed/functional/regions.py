"""Regions at the edge of segmented structures, for the boundary loss of ELCFS (https://arxiv.org/abs/2103.06030).

Pixels are neighbours along the axes (the 4-connected cross, in volumes the 6-connected one), so distances are L1
distances. MONAI's `erode` and
`dilate` use the full square instead, whose ring has other corners, and MONAI's `LabelToContour` draws an 8-connected
edge. As in `scipy.ndimage`, everything outside the image counts as background: a structure that touches the image
border has its boundary there, and nothing grows in from outside.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def boundary(mask: Tensor) -> Tensor:
    """Return the inner boundary of structures: the pixels of a mask that touch a pixel outside of the mask.

    Pixels touch along rows and columns, not along diagonals. Everything outside of the image is outside of the mask.

    Args:
        mask: (B, S, H, W) or (B, S, X, Y, Z), any dtype, above 0.5 inside each of S structures.

    Returns:
        0 and 1 in the shape and dtype of `mask`.

    Raises:
        ValueError: if the mask does not have four or five axes.
    """
    inside = _binarise(mask)
    eroded = ~_dilate_once(~inside, outside=True)
    return (inside & ~eroded).to(mask.dtype)


def background_ring(mask: Tensor, width: int = 5, slice_ratio: float = 1.0) -> Tensor:
    """Return the ring of background around structures: the mask dilated `width` times, without the mask itself.

    Args:
        mask: (B, S, H, W) or (B, S, X, Y, Z), any dtype, above 0.5 inside each of S structures.
        width: width of the ring in pixels, at least 1. Distances are counted along the axes (L1 distance).
        slice_ratio: for volumes, the voxel size in the plane of a slice divided by the distance of two slices. The ring
            has a width of floor(width * slice_ratio) slices.

    Returns:
        0 and 1 in the shape and dtype of `mask`.

    Raises:
        ValueError: if the mask does not have four or five axes, or the width is below 1.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1 pixel, got {width}")
    inside = grown = _binarise(mask)
    for step in range(width):
        across = int((step + 1) * slice_ratio) > int(step * slice_ratio)
        grown = _dilate_once(grown, outside=False, across_slices=across)
    return (grown & ~inside).to(mask.dtype)


def _binarise(mask: Tensor) -> Tensor:
    """True where a mask (B, S, H, W) or (B, S, X, Y, Z) is above 0.5; ValueError for another number of axes."""
    if mask.ndim not in (4, 5):
        raise ValueError(f"mask must be (B, S, H, W) or (B, S, X, Y, Z), got {tuple(mask.shape)}")
    return mask > 0.5


def _dilate_once(region: Tensor, outside: bool, across_slices: bool = True) -> Tensor:
    """Dilate bool masks once with the cross of the neighbours along the axes, of volumes along the last axis only with
    `across_slices`; `outside` is the value beyond the image border.

    Logical operations take 0.2 ms for 10 x 384 x 384 pixels on two cores, max-pooling of floats 13 ms.
    """
    grown = region
    for axis in range(2, region.ndim if across_slices else 4):
        border = torch.full_like(region.narrow(axis, 0, 1), outside)
        padded, n = torch.cat([border, region, border], dim=axis), region.shape[axis]
        grown = grown | padded.narrow(axis, 0, n) | padded.narrow(axis, 2, n)
    return grown


def edge_agreement(before: Tensor, after: Tensor, mask: Tensor, width: int = 2) -> float | None:
    """Measure how well the image edges near the outlines of structures stay in place when images are changed.

    The measure of an image is the Pearson correlation between the gradient magnitudes (mean over channels) of the
    original and of the changed image. Only pixels near an outline count: the inner boundary of each structure, and a
    ring of background around it.

    Args:
        before: (B, C, H, W), the original images.
        after: (B, C, H, W), the changed images.
        mask: (B, S, H, W), above 0.5 inside each of S structures.
        width: width of the ring in pixels, at least 1.

    Returns:
        Mean correlation over the images, in [-1, 1]: 1 if only brightness or contrast changed, near 0 if the edges
        moved. Images without a structure, or with constant gradients near its outline, are left out; None if no image
        is left.
    """
    near = ((boundary(mask) > 0.5) | (background_ring(mask, width) > 0.5)).any(dim=1)
    correlations = []
    for edges, edges_after, region in zip(_gradient_magnitude(before), _gradient_magnitude(after), near, strict=True):
        pair = torch.stack([edges[region], edges_after[region]])
        if pair.shape[1] > 1 and bool((pair.std(dim=1) > 0).all()):
            correlations.append(float(torch.corrcoef(pair)[0, 1]))
    return sum(correlations) / len(correlations) if correlations else None


def _gradient_magnitude(image: Tensor) -> Tensor:
    """Return (B, H, W): the magnitude of the central differences of images (B, C, H, W), mean over channels."""
    padded = F.pad(image.double(), (1, 1, 1, 1), mode="replicate")
    rows = padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]
    columns = padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]
    return torch.hypot(rows, columns).mean(dim=1)
