"""Shapes and smooth random fields in millimetres, which the phantom anatomies are built from, at any resolution.

A shape is a signed distance field in mm, negative inside. `coverage` converts it to the fraction of each voxel that the
shape fills. A centre, end or radius is a number, or an array (Z, 1, 1) with one value for each slice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray

Box = tuple[slice, slice, slice]
FIELD_HALF_WIDTH_MM = (48.0, 150.0, 150.0)  # z, y, x: extent of every random field around the origin


@dataclass(frozen=True)
class Grid:
    """Positions in mm at which an anatomy is sampled: x to the patient's left, y to the back, z to the head."""

    axes: tuple[ndarray, ndarray, ndarray]  # regular z, y and x positions in mm
    x: ndarray  # (Z, Y, X), regular, or displaced by `bend`
    y: ndarray  # (Z, Y, X), regular, or displaced by `bend`
    z: ndarray  # (Z, 1, 1)
    edge_mm: float  # width of a shape's soft edge, about one pixel
    fields: dict[str, ndarray]  # random fields by name, (Z, Y, X) with zero mean and unit variance
    box: Box  # slices that cut this grid out of the grid before any crop

    def crop(
        self,
        x_mm: tuple[float, float],
        y_mm: tuple[float, float],
        z_mm: tuple[float, float] = (-1e3, 1e3),
        margin_mm: float = 7.0,
    ) -> Grid:
        """Return the part between bounds, widened by the margin so that points moved by `bend` are not lost."""
        (z, y, x), (whole_z, whole_y, whole_x) = self.axes, self.box
        box = _between(z, z_mm, margin_mm), _between(y, y_mm, margin_mm), _between(x, x_mm, margin_mm)
        return replace(
            self,
            axes=(z[box[0]], y[box[1]], x[box[2]]),
            x=self.x[box],
            y=self.y[box],
            z=self.z[box[0]],
            fields={k: v[box] for k, v in self.fields.items()},
            box=(_moved(box[0], whole_z), _moved(box[1], whole_y), _moved(box[2], whole_x)),
        )

    def along_z(self, *pairs: tuple[float, float]) -> ndarray:
        """Interpolate (z in mm, value) linearly, constant outside of the first and last z: (Z, 1, 1)."""
        heights, values = zip(*pairs)
        return np.interp(self.z, heights, values).astype(np.float32)


def _between(axis: ndarray, bounds_mm: tuple[float, float], margin_mm: float) -> slice:
    """The slice of an axis between two positions, widened by a margin on both sides."""
    low, high = bounds_mm
    return slice(*np.searchsorted(axis, (low - margin_mm, high + margin_mm)))


def _moved(part: slice, whole: slice) -> slice:
    """Convert a slice relative to a box into a slice relative to the grid that contains the box."""
    return slice(part.start + whole.start, part.stop + whole.start)


def regular_grid(z_mm: ndarray, y_mm: ndarray, x_mm: ndarray, edge_mm: float) -> Grid:
    """A grid without displacement and without random fields."""
    z, y, x = (np.asarray(axis, np.float32) for axis in (z_mm, y_mm, x_mm))
    shape = (len(z), len(y), len(x))
    wide_x, wide_y = np.broadcast_to(x, shape), np.broadcast_to(y[:, None], shape)
    box = slice(0, len(z)), slice(0, len(y)), slice(0, len(x))
    return Grid((z, y, x), wide_x, wide_y, z[:, None, None], edge_mm, {}, box)


def bend(grid: Grid, shift_x_mm: ndarray, shift_y_mm: ndarray) -> Grid:
    """Return a copy with displaced points; a shape that is evaluated on it moves in the opposite direction."""
    return replace(grid, x=grid.x + shift_x_mm, y=grid.y + shift_y_mm)


def _spline_weights(axis: ndarray, half_width: float, step: float) -> ndarray:
    """Cubic B-spline weights (N, knots) at the points of one axis; the squares of each row sum to 1."""
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
    """Draw a smooth Gaussian field (Z, Y, X) of zero mean and unit variance: a cubic B-spline on random knots.

    Its values at given positions do not depend on the grid's resolution. `steps_mm`: distances of knots along z, y, x.
    """
    weights = [_spline_weights(*rule) for rule in zip(grid.axes, half_width_mm, steps_mm)]
    lattice = rng.standard_normal([w.shape[1] for w in weights], dtype=np.float32)
    field = np.einsum("zi,ijk->zjk", weights[0], lattice)  # not `matmul`, whose sums depend on the number of threads
    return np.einsum("xk,zyk->zyx", weights[2], np.einsum("yj,zjk->zyk", weights[1], field))


def ellipse(grid: Grid, centre: tuple, radii: tuple, degrees: float = 0.0) -> ndarray:
    """Approximate signed distance (Z, Y, X) to an ellipse in each slice, rotated from x towards y."""
    x, y = grid.x - centre[0], grid.y - centre[1]
    if degrees:
        cos, sin = np.float32(np.cos(np.radians(degrees))), np.float32(np.sin(np.radians(degrees)))
        x, y = cos * x + sin * y, cos * y - sin * x
    u, v = x / np.maximum(radii[0], 1e-2), y / np.maximum(radii[1], 1e-2)
    return (np.sqrt(u * u + v * v) - 1) * np.minimum(radii[0], radii[1])


def ellipsoid(grid: Grid, centre: tuple, radii: tuple) -> ndarray:
    """Approximate signed distance (Z, Y, X) to an ellipsoid with axes along x, y and z."""
    u, v, w = ((p - c) / r for p, c, r in zip((grid.x, grid.y, grid.z), centre, radii))
    return (np.sqrt(u * u + v * v + w * w) - 1) * np.float32(min(radii))


def band(grid: Grid, start: tuple, end: tuple, radius_mm: float | ndarray) -> ndarray:
    """Signed distance (Z, Y, X) to a straight bar with round ends in each slice."""
    along_x, along_y = end[0] - start[0], end[1] - start[1]
    x, y = grid.x - start[0], grid.y - start[1]
    t = np.clip((x * along_x + y * along_y) / (along_x**2 + along_y**2), 0, 1)
    return np.hypot(x - t * along_x, y - t * along_y) - radius_mm


def coverage(distance_mm: ndarray, edge_mm: float) -> ndarray:
    """Convert signed distances to fractions in [0, 1], with a linear transition of `edge_mm` centred on the surface."""
    return np.clip(0.5 - distance_mm / edge_mm, 0, 1)
