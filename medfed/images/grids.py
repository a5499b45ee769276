"""Place masks on the voxel grid of an image without interpolation, where the voxels of both coincide."""

from __future__ import annotations

import numpy as np

TOLERANCE = 0.1  # in voxels, at the corners of the mask


def voxel_mapping(
    shape: tuple[int, ...], affine: np.ndarray, grid_affine: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a matrix (3, 3) of 0, 1 and -1, and an offset (3,): index_in_grid = matrix @ index_in_mask + offset.

    The axes of the mask may be exchanged or reversed, and it may start at another voxel than the grid. None if a corner
    of the mask would move by more than a tenth of a voxel. The affines, (4, 4), map voxel indices to millimetres.
    """
    exact = np.linalg.inv(grid_affine) @ affine
    matrix, offset = np.rint(exact[:3, :3]), np.rint(exact[:3, 3])
    if (np.abs(matrix).sum(axis=0) != 1).any() or (np.abs(matrix).sum(axis=1) != 1).any():
        return None
    corners = np.array(list(np.ndindex(2, 2, 2))) * (np.array(shape) - 1)
    moved = corners @ (exact[:3, :3] - matrix).T + exact[:3, 3] - offset
    return (matrix.astype(np.int64), offset.astype(np.int64)) if np.abs(moved).max() <= TOLERANCE else None


def reorder_axes(
    mask: np.ndarray, affine: np.ndarray, grid_shape: tuple[int, ...], grid_affine: np.ndarray
) -> np.ndarray | None:
    """Exchange and reverse the axes of a mask, (S, H, W, D), so that it has the voxel order of a grid.

    None if the mask covers other voxels than the grid.
    """
    mapping = voxel_mapping(mask.shape[1:], affine, grid_affine)
    if mapping is None:
        return None
    matrix, offset = mapping
    axes = [int(np.flatnonzero(row)[0]) for row in matrix]  # the mask's axis of each axis of the grid
    signs = matrix.sum(axis=1)
    starts = [0 if sign > 0 else size - 1 for sign, size in zip(signs, grid_shape)]
    reordered = mask.transpose(0, *(axis + 1 for axis in axes))
    if reordered.shape[1:] != tuple(grid_shape) or list(offset) != starts:
        return None
    directions = [slice(None), *(slice(None, None, int(sign)) for sign in signs)]
    return reordered[tuple(directions)]
