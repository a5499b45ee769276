"""Patches of volumes as their axial slices, for what papers define on 2-D images."""

from __future__ import annotations

from torch import Tensor


def as_slices(image: Tensor) -> Tensor:
    """Return the slices (B * Z, C, X, Y) of patches (B, C, X, Y, Z); images (B, C, H, W) are returned unchanged."""
    return image if image.ndim == 4 else image.movedim(-1, 1).flatten(0, 1)


def from_slices(slices: Tensor, like: Tensor) -> Tensor:
    """Return slices (B * Z, C, X, Y) of patches as patches of the size of `like`, (B, C, X, Y, Z); reverses
    `as_slices`."""
    return slices if like.ndim == 4 else slices.unflatten(0, (-1, like.shape[-1])).movedim(1, -1)
