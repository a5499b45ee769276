"""Exact distances between the edges of two masks, faster than a search tree over all edge voxels.

The edges of a predicted and a true mask are usually a few voxels apart. Therefore, the nearest edge voxel is first
searched nearby, with a few operations on whole arrays. SciPy computes the distances of voxels without an edge nearby.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import distance_transform_edt
from scipy.spatial import KDTree

RADII = (3, 12)  # how far the fast search looks at first, and then for the rest, in voxels of the finest spacing
TREE_COST = 20  # a query of the search tree takes about as long as the distance transform of this many voxels
MAX_STEPS = 1 << 14  # stands for "no edge voxel in this column"; its square fits into the integers that are used


def mask_edge(mask: np.ndarray) -> np.ndarray:
    """The voxels with a neighbour (along an axis) outside the mask or the image, as in MONAI's `get_mask_edges`."""
    padded = np.pad(mask, 1)
    inside = mask.copy()
    for axis in range(mask.ndim):
        for start in (0, 2):
            window = [slice(1, -1)] * mask.ndim
            window[axis] = slice(start, start + mask.shape[axis])
            inside &= padded[tuple(window)]
    return mask & ~inside


def distances_to_edge(points: np.ndarray, edge: np.ndarray, spacing: tuple[float, ...]) -> np.ndarray:
    """Return the distances (N,) from the True voxels of `points`, in index order, to the nearest one of `edge`."""
    if points.ndim == 2:
        return distances_to_edge(points[..., None], edge[..., None], (*spacing, 1.0))
    voxels = np.argwhere(points)
    distances = np.zeros(len(voxels))
    rest = np.flatnonzero(~edge[points])  # a voxel of both edges has distance 0
    if len(rest):
        along_first = (_steps_along_first_axis(edge) * spacing[0]) ** 2
        for radius in RADII:
            reach, n_searched = radius * min(spacing), len(rest)
            distances[rest] = np.sqrt(_search_nearby(voxels[rest], along_first, spacing, reach))
            rest = rest[distances[rest] > reach]
            if TREE_COST * len(rest) < len(voxels) or 2 * len(rest) > n_searched:
                break  # few are left, or the edges are far apart and a larger radius would not find most of them either
    if len(rest):
        distances[rest] = _search_everywhere(voxels[rest], edge, spacing)
    return distances


def _steps_along_first_axis(edge: np.ndarray) -> np.ndarray:
    """The number of steps along the first axis to the nearest edge voxel: (1, 0, 1, 2) for (0, 1, 0, 0)."""
    steps = np.where(edge, 0, MAX_STEPS).astype(np.int32)
    for index in range(1, len(steps)):
        np.minimum(steps[index], steps[index - 1] + 1, out=steps[index])
    for index in range(len(steps) - 2, -1, -1):
        np.minimum(steps[index], steps[index + 1] + 1, out=steps[index])
    return steps


def _search_nearby(voxels: np.ndarray, along_first: np.ndarray, spacing: tuple[float, ...], reach: float) -> np.ndarray:
    """Return squared distances to the nearest edge voxel, exact up to `reach`^2, from those along the first axis."""
    nearest = along_first.copy()
    for shift in range(1, min(int(reach / spacing[2]), along_first.shape[2] - 1) + 1):
        cost = (shift * spacing[2]) ** 2
        np.minimum(nearest[..., :-shift], along_first[..., shift:] + cost, out=nearest[..., :-shift])
        np.minimum(nearest[..., shift:], along_first[..., :-shift] + cost, out=nearest[..., shift:])
    n_shifts = min(int(reach / spacing[1]), along_first.shape[1] - 1)
    padded = np.pad(nearest, ((0, 0), (n_shifts, n_shifts), (0, 0)), constant_values=np.inf)
    index = np.ravel_multi_index((voxels + (0, n_shifts, 0)).T, padded.shape)
    squared = padded.take(index)
    for shift in range(1, n_shifts + 1):
        step, cost = shift * padded.shape[2], (shift * spacing[1]) ** 2
        for neighbour in (index - step, index + step):
            np.minimum(squared, padded.take(neighbour) + cost, out=squared)
    return squared


def _search_everywhere(voxels: np.ndarray, edge: np.ndarray, spacing: tuple[float, ...]) -> np.ndarray:
    """Return the distance from each voxel, an index (N, 3), to the nearest edge voxel, with SciPy."""
    if TREE_COST * len(voxels) < edge.size:
        return KDTree(np.argwhere(edge) * spacing, leafsize=32).query(voxels * np.asarray(spacing))[0]
    return distance_transform_edt(~edge, sampling=spacing)[tuple(voxels.T)]
