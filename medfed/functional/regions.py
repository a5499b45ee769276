"""The two regions that ELCFS contrasts at the edge of a structure (its inner rim, a ring of background), and its edges.

The element is the 4-connected cross, so distances are counted in steps along rows and columns (L1). MONAI's `erode` and
`dilate` use the full square, whose ring has other corners, and its `LabelToContour` draws an 8-connected edge.
Outside the image counts as background, as `scipy.ndimage` has it by default: a structure that touches the border of the
image has its boundary there, and nothing grows in from outside.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def boundary(mask: Tensor) -> Tensor:
    """The inner rim, one pixel wide: the mask less its erosion.

    Args:
        mask: (B, S, H, W), one structure a channel, any type; a pixel belongs to the structure where it exceeds 0.5.

    Returns:
        (B, S, H, W) of 0 and 1, in the type of `mask`; empty where the mask is.

    Raises:
        ValueError: if mask does not have four axes.
    """
    inside = _binarise(mask)
    eroded = ~_dilate_once(~inside, outside=True)
    return (inside & ~eroded).to(mask.dtype)


def background_ring(mask: Tensor, width: int = 5) -> Tensor:
    """The background within `width` pixels (L1) of the structure: the mask dilated `width` times, less the mask.

    Args and result as in `boundary`. It is cut off at the border of the image.

    Raises:
        ValueError: if mask does not have four axes, or width is less than 1.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1 pixel, got {width}")
    inside = grown = _binarise(mask)
    for _ in range(width):
        grown = _dilate_once(grown, outside=False)
    return (grown & ~inside).to(mask.dtype)


def _binarise(mask: Tensor) -> Tensor:
    if mask.ndim != 4:
        raise ValueError(f"mask must be (B, S, H, W), got {tuple(mask.shape)}")
    return mask > 0.5


def _dilate_once(region: Tensor, outside: bool) -> Tensor:
    """One dilation with the cross. Max-pooling floats, 10 x 384 x 384 on two cores: 13 ms; this: 0.2 ms."""
    padded = F.pad(region, (1, 1, 1, 1), value=outside)
    rows = padded[..., :-2, 1:-1] | padded[..., 2:, 1:-1]
    columns = padded[..., 1:-1, :-2] | padded[..., 1:-1, 2:]
    return region | rows | columns


def edge_agreement(before: Tensor, after: Tensor, mask: Tensor, width: int = 2) -> float | None:
    """How well edges near the outline of the structures stay in place when images are redrawn.

    The correlation of gradient magnitudes (mean over channels) in the boundary and the `width` pixels of ring around
    it, mean over the images that have any. 1 for any change of brightness, contrast or colour; near 0 for edges
    elsewhere.

    Args:
        before, after: (B, C, H, W).
        mask: (B, S, H, W).

    Returns:
        In [-1, 1]; None where no image has an outline with edges in it.
    """
    near = ((boundary(mask) > 0.5) | (background_ring(mask, width) > 0.5)).any(dim=1)
    found = []
    for edges, edges_after, region in zip(_gradient_magnitude(before), _gradient_magnitude(after), near, strict=True):
        pair = torch.stack([edges[region], edges_after[region]])
        if pair.shape[1] > 1 and bool((pair.std(dim=1) > 0).all()):
            found.append(float(torch.corrcoef(pair)[0, 1]))
    return sum(found) / len(found) if found else None


def _gradient_magnitude(image: Tensor) -> Tensor:
    """(B, H, W), magnitude of the central differences, mean over channels."""
    padded = F.pad(image.double(), (1, 1, 1, 1), mode="replicate")
    rows = padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]
    columns = padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]
    return torch.hypot(rows, columns).mean(dim=1)
