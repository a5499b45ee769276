"""Shapes and smooth random fields in millimetres, which the phantom anatomies are built from.

A shape is a signed distance field in mm, negative inside. `coverage` converts it to the fraction of each voxel that the
shape fills. Shapes and fields are defined in mm, so the same anatomy can be sampled at any resolution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray

Box = tuple[slice, slice, slice]
FIELD_HALF_WIDTH_MM = (48.0, 150.0, 150.0)  # z, y, x: extent of every random field around the origin


@dataclass(frozen=True)
class Grid:
    """Positions in mm at which an anatomy is sampled.

    x points to the patient's left, y to the back and z to the head. Arrays are ordered (Z, Y, X).

    Args:
        axes: regular z, y and x positions in mm; three 1-D arrays of lengths Z, Y and X.
        x: (Z, Y, X), x positions in mm at which shapes are evaluated; regular, or displaced by `bend`.
        y: (Z, Y, X), y positions in mm at which shapes are evaluated; regular, or displaced by `bend`.
        z: (Z, 1, 1), z positions in mm.
        edge_mm: width of a shape's soft edge in mm, about one pixel.
        fields: smooth random fields by name, each (Z, Y, X) with zero mean and unit variance.
        box: z, y and x slices that cut this grid out of the original grid, which is the grid before any crop.
    """

    axes: tuple[ndarray, ndarray, ndarray]
    x: ndarray
    y: ndarray
    z: ndarray
    edge_mm: float
    fields: dict[str, ndarray]
    box: Box

    def crop(
        self,
        x_mm: tuple[float, float],
        y_mm: tuple[float, float],
        z_mm: tuple[float, float] = (-1e3, 1e3),
        margin_mm: float = 7.0,
    ) -> Grid:
        """Return the part of the grid between the given bounds. This grid is not modified.

        Args:
            x_mm: lower and upper bound of x in mm.
            y_mm: lower and upper bound of y in mm.
            z_mm: lower and upper bound of z in mm.
            margin_mm: distance in mm by which every bound is widened. A point that `bend` has displaced by less than
                this distance is then not lost.

        Returns:
            A new grid that has only the positions between the bounds, and the values of the random fields at these
            positions. Its attribute `box` holds the z, y and x slices that cut it out of the original grid, which is
            the grid before any crop.
        """
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
        """Return a quantity at every z position of the grid, interpolated linearly between given values.

        Args:
            pairs: given values as (z in mm, value), ordered by increasing z. Below the first z the first value applies,
                above the last z the last value.

        Returns:
            (Z, 1, 1) float32, in the unit of the given values.
        """
        heights, values = zip(*pairs)
        return np.interp(self.z, heights, values).astype(np.float32)


def _between(axis: ndarray, bounds_mm: tuple[float, float], margin_mm: float) -> slice:
    """Return the slice of an axis between two positions, widened by a margin on both sides."""
    low, high = bounds_mm
    return slice(*np.searchsorted(axis, (low - margin_mm, high + margin_mm)))


def _moved(part: slice, whole: slice) -> slice:
    """Convert a slice relative to a box into a slice relative to the grid that contains the box."""
    return slice(part.start + whole.start, part.stop + whole.start)


def regular_grid(z_mm: ndarray, y_mm: ndarray, x_mm: ndarray, edge_mm: float) -> Grid:
    """Create a regular grid of positions, without displacement and without random fields.

    Args:
        z_mm: (Z,), z positions in mm.
        y_mm: (Y,), y positions in mm.
        x_mm: (X,), x positions in mm.
        edge_mm: width in mm of the soft edge of shapes that are drawn on the grid, about one pixel.
    """
    z, y, x = (np.asarray(axis, np.float32) for axis in (z_mm, y_mm, x_mm))
    shape = (len(z), len(y), len(x))
    wide_x, wide_y = np.broadcast_to(x, shape), np.broadcast_to(y[:, None], shape)
    box = slice(0, len(z)), slice(0, len(y)), slice(0, len(x))
    return Grid((z, y, x), wide_x, wide_y, z[:, None, None], edge_mm, {}, box)


def bend(grid: Grid, shift_x_mm: ndarray, shift_y_mm: ndarray) -> Grid:
    """Return a copy of the grid with displaced points. Shapes that are evaluated on the copy are deformed.

    A shape that is evaluated on the new grid is shifted in the opposite direction. For example, a positive `shift_x_mm`
    shifts the shape to smaller x.

    Args:
        grid: the grid to displace; it is not modified.
        shift_x_mm: (Z, Y, X), number that is added to the x position of each point, in mm.
        shift_y_mm: (Z, Y, X), number that is added to the y position of each point, in mm.
    """
    return replace(grid, x=grid.x + shift_x_mm, y=grid.y + shift_y_mm)


def _spline_weights(axis: ndarray, half_width: float, step: float) -> ndarray:
    """Compute cubic B-spline weights (N, knots) at the points of one axis; the squares of each row sum to 1."""
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
    """Draw a smooth Gaussian random field. Its values at given positions do not depend on the resolution of the grid.

    The field is a cubic B-spline with standard normal coefficients on a regular lattice of knots.

    Args:
        grid: positions at which the field is evaluated. The regular positions `axes` are used, without the displacement
            by `bend`.
        rng: NumPy random generator for the coefficients.
        steps_mm: distances between the knots along z, y and x in mm. They determine the size of the smallest details of
            the field.
        half_width_mm: extent of the lattice on each side of the origin along z, y and x in mm.

    Returns:
        (Z, Y, X) float32 with zero mean and unit variance.
    """
    weights = [_spline_weights(*rule) for rule in zip(grid.axes, half_width_mm, steps_mm)]
    lattice = rng.standard_normal([w.shape[1] for w in weights], dtype=np.float32)
    in_z = np.tensordot(weights[0], lattice, 1)
    return np.matmul(np.matmul(weights[1], in_z), weights[2].T)


def ellipse(grid: Grid, centre: tuple, radii: tuple, degrees: float = 0.0) -> ndarray:
    """Compute the signed distance of every grid point to the outline of an ellipse that lies in the point's slice.

    Args:
        grid: positions at which the distance is evaluated.
        centre: (x, y) of the centre in mm; each is a number, or an array (Z, 1, 1) with one value for each slice.
        radii: (x, y) semi-axes in mm; each is a number, or an array (Z, 1, 1).
        degrees: rotation of the ellipse in degrees, from x towards y.

    Returns:
        (Z, Y, X), approximate signed distance in mm, negative inside.
    """
    x, y = grid.x - centre[0], grid.y - centre[1]
    if degrees:
        cos, sin = np.float32(np.cos(np.radians(degrees))), np.float32(np.sin(np.radians(degrees)))
        x, y = cos * x + sin * y, cos * y - sin * x
    u, v = x / np.maximum(radii[0], 1e-2), y / np.maximum(radii[1], 1e-2)
    return (np.sqrt(u * u + v * v) - 1) * np.minimum(radii[0], radii[1])


def ellipsoid(grid: Grid, centre: tuple, radii: tuple) -> ndarray:
    """Compute the signed distance of every grid point to the surface of an ellipsoid with axes along x, y and z.

    Args:
        grid: positions at which the distance is evaluated.
        centre: (x, y, z) of the centre in mm.
        radii: (x, y, z) semi-axes in mm.

    Returns:
        (Z, Y, X), approximate signed distance in mm, negative inside.
    """
    u, v, w = ((p - c) / r for p, c, r in zip((grid.x, grid.y, grid.z), centre, radii))
    return (np.sqrt(u * u + v * v + w * w) - 1) * np.float32(min(radii))


def band(grid: Grid, start: tuple, end: tuple, radius_mm: float | ndarray) -> ndarray:
    """Compute, in each slice, the signed distance of every grid point to the outline of a straight bar with round ends.

    The bar lies in the slice. It consists of all points whose distance from a line segment is at most `radius_mm`.

    Args:
        grid: positions at which the distance is evaluated.
        start: (x, y) of the segment's first end in mm; each is a number, or an array (Z, 1, 1) with one value for each
            slice.
        end: (x, y) of the segment's second end in mm; each is a number, or an array (Z, 1, 1).
        radius_mm: half the bar's thickness in mm; a number, or an array (Z, 1, 1).

    Returns:
        (Z, Y, X), signed distance in mm, negative inside.
    """
    along_x, along_y = end[0] - start[0], end[1] - start[1]
    x, y = grid.x - start[0], grid.y - start[1]
    t = np.clip((x * along_x + y * along_y) / (along_x**2 + along_y**2), 0, 1)
    return np.hypot(x - t * along_x, y - t * along_y) - radius_mm


def coverage(distance_mm: ndarray, edge_mm: float) -> ndarray:
    """Convert a signed distance to the fraction of each voxel that the shape fills.

    Args:
        distance_mm: signed distance of each voxel to the shape's surface in mm, negative inside; an array of any shape.
        edge_mm: width in mm of the linear transition from 1 (inside) to 0 (outside), which is centred on the surface.

    Returns:
        Array of the same shape as `distance_mm`, in [0, 1].
    """
    return np.clip(0.5 - distance_mm / edge_mm, 0, 1)
