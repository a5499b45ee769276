"""Soft shapes and smooth random fields in millimetres: what an anatomy is drawn with, at any resolution.

A shape is a signed distance in mm (negative inside); `share` turns it into the part of each voxel that the shape fills.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray

Box = tuple[slice, slice, slice]
FIELD_HALF_WIDTH_MM = (48.0, 150.0, 150.0)  # z, y, x: a field is drawn this far around the origin, whatever the grid


@dataclass(frozen=True)
class Grid:
    """Sample points. x runs to the patient's left, y to the back, z to the head; arrays are ordered (Z, Y, X).

    Args:
        axes: the regular z, y, x positions, 1-D.
        x, y: (Z, Y, X) positions at which shapes are evaluated (the regular ones, bent: see `bend`).
        z: (Z, 1, 1).
        edge_mm: width of the soft edge of a shape, about one pixel.
        fields: smooth random fields by name, (Z, Y, X), zero mean and unit variance.
        box: where these points lie in the whole grid.
    """

    axes: tuple[ndarray, ndarray, ndarray]
    x: ndarray
    y: ndarray
    z: ndarray
    edge_mm: float
    fields: dict[str, ndarray]
    box: Box

    def crop(
        self, x_mm: tuple[float, float], y_mm: tuple[float, float], z_mm: tuple[float, float] = (-1e3, 1e3),
        margin_mm: float = 7.0,
    ) -> Grid:
        """The part between these bounds, widened by `margin_mm`, which covers the bending."""
        (z, y, x), (whole_z, whole_y, whole_x) = self.axes, self.box
        box = _between(z, z_mm, margin_mm), _between(y, y_mm, margin_mm), _between(x, x_mm, margin_mm)
        return replace(
            self, axes=(z[box[0]], y[box[1]], x[box[2]]),
            x=self.x[box], y=self.y[box], z=self.z[box[0]], fields={k: v[box] for k, v in self.fields.items()},
            box=(_moved(box[0], whole_z), _moved(box[1], whole_y), _moved(box[2], whole_x)))

    def along_z(self, *pairs: tuple[float, float]) -> ndarray:
        """(Z, 1, 1): a quantity that is known at some heights (z in mm, value), linear in between."""
        heights, values = zip(*pairs)
        return np.interp(self.z, heights, values).astype(np.float32)


def _between(axis: ndarray, bounds_mm: tuple[float, float], margin_mm: float) -> slice:
    """The part of one axis between two positions, widened by the margin."""
    low, high = bounds_mm
    return slice(*np.searchsorted(axis, (low - margin_mm, high + margin_mm)))


def _moved(part: slice, whole: slice) -> slice:
    """A part of a box, in the grid that the box lies in."""
    return slice(part.start + whole.start, part.stop + whole.start)


def regular_grid(z_mm: ndarray, y_mm: ndarray, x_mm: ndarray, edge_mm: float) -> Grid:
    """A grid without bending or fields."""
    z, y, x = (np.asarray(axis, np.float32) for axis in (z_mm, y_mm, x_mm))
    shape = (len(z), len(y), len(x))
    wide_x, wide_y = np.broadcast_to(x, shape), np.broadcast_to(y[:, None], shape)
    box = slice(0, len(z)), slice(0, len(y)), slice(0, len(x))
    return Grid((z, y, x), wide_x, wide_y, z[:, None, None], edge_mm, {}, box)


def bend(grid: Grid, shift_x_mm: ndarray, shift_y_mm: ndarray) -> Grid:
    """Displace the sample points, so that every shape drawn later is bent the same way."""
    return replace(grid, x=grid.x + shift_x_mm, y=grid.y + shift_y_mm)


def _spline_weights(axis: ndarray, half_width: float, step: float) -> ndarray:
    """(N, knots) cubic B-spline weights of lattice knots at points of one axis; their squares sum to one."""
    knots = np.arange(-half_width - 2 * step, half_width + 2.01 * step, step)
    t = np.abs(axis[:, None] - knots) / step
    weights = np.where(t < 1, 2 / 3 - t**2 + t**3 / 2, np.clip(2 - t, 0, None) ** 3 / 6)
    return (weights / np.sqrt((weights**2).sum(1, keepdims=True)).clip(1e-6)).astype(np.float32)


def random_field(
    grid: Grid,
    rng: np.random.Generator,
    steps_mm: tuple[float, float, float],
    half_width_mm: tuple[float, float, float] = FIELD_HALF_WIDTH_MM,
) -> ndarray:
    """(Z, Y, X) smooth Gaussian field with grain `steps_mm` (z, y, x); the same field at any resolution."""
    weights = [_spline_weights(*rule) for rule in zip(grid.axes, half_width_mm, steps_mm)]
    lattice = rng.standard_normal([w.shape[1] for w in weights], dtype=np.float32)
    in_z = np.tensordot(weights[0], lattice, 1)
    return np.matmul(np.matmul(weights[1], in_z), weights[2].T)


def ellipse(grid: Grid, centre: tuple, radii: tuple, degrees: float = 0.0) -> ndarray:
    """Distance to an ellipse in each slice; centre and radii are (x, y), numbers or (Z, 1, 1)."""
    x, y = grid.x - centre[0], grid.y - centre[1]
    if degrees:
        cos, sin = np.float32(np.cos(np.radians(degrees))), np.float32(np.sin(np.radians(degrees)))
        x, y = cos * x + sin * y, cos * y - sin * x
    u, v = x / np.maximum(radii[0], 1e-2), y / np.maximum(radii[1], 1e-2)
    return (np.sqrt(u * u + v * v) - 1) * np.minimum(radii[0], radii[1])


def ellipsoid(grid: Grid, centre: tuple, radii: tuple) -> ndarray:
    """Distance to an ellipsoid; centre and radii are (x, y, z)."""
    u, v, w = ((p - c) / r for p, c, r in zip((grid.x, grid.y, grid.z), centre, radii))
    return (np.sqrt(u * u + v * v + w * w) - 1) * np.float32(min(radii))


def band(grid: Grid, start: tuple, end: tuple, radius_mm: float | ndarray) -> ndarray:
    """Distance to a band with round ends from `start` to `end`, (x, y) in each slice."""
    along_x, along_y = end[0] - start[0], end[1] - start[1]
    x, y = grid.x - start[0], grid.y - start[1]
    t = np.clip((x * along_x + y * along_y) / (along_x**2 + along_y**2), 0, 1)
    return np.hypot(x - t * along_x, y - t * along_y) - radius_mm


def coverage(distance_mm: ndarray, edge_mm: float) -> ndarray:
    """Part of each voxel inside the shape, 0 to 1."""
    return np.clip(0.5 - distance_mm / edge_mm, 0, 1)
