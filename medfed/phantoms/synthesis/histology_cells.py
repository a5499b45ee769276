"""Nuclei: where they lie, and how each is drawn. All of one kind are computed at once, then put in place one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray


@dataclass(frozen=True)
class NucleusType:
    """How nuclei of one kind look. Lengths in micrometres.

    radius_um, spread: mean radius, and standard deviation of its logarithm.
    longer: length over width, at least and at most.
    ragged: how far the outline departs from an ellipse.
    chromatin: stain inside; rim: how much more at the edge; nucleoli: how much more at one or two dots.
    """

    radius_um: float
    spread: float
    longer: tuple[float, float]
    ragged: float
    chromatin: float
    rim: float
    nucleoli: float = 0.0


def jittered_lattice(rng: np.random.Generator, side_um: float, way_um: float, jitter: float = 0.30) -> ndarray:
    """(N, 2) places in micrometres, on shaken rows of triangles a way apart: nuclei do not overlap by much."""
    rows = np.arange(-way_um, side_um + way_um, way_um * 0.866)
    columns = np.arange(-way_um, side_um + way_um, way_um)
    shift = rng.uniform(0, way_um, 2)
    y, x = np.meshgrid(rows, columns, indexing="ij")
    x = x + (np.arange(len(rows)) % 2 * way_um / 2)[:, None]
    places = np.stack([y.ravel(), x.ravel()], 1) - shift / 2
    return places + rng.normal(0, jitter / 2 * way_um, places.shape)


def draw_nuclei(
    canvas: ndarray, places_um: ndarray, kind: NucleusType, um_per_pixel: float, rng: np.random.Generator,
    angle: float | None = None,
) -> None:
    """Put nuclei on a canvas of haematoxylin, in place; where two meet, the stronger stays.

    Args:
        canvas: (side, side) float32.
        places_um: (N, 2) rows and columns; those off the canvas are left out.
        um_per_pixel: of the canvas.
        angle: along which they lie, radians; None for any.
    """
    n = len(places_um)
    if not n:
        return
    radius = kind.radius_um * np.exp(kind.spread * np.clip(rng.normal(0, 1, n), -2, 2)) / um_per_pixel
    ratio = np.sqrt(rng.uniform(*kind.longer, n))
    angles = rng.uniform(0, np.pi, n) if angle is None else angle + rng.normal(0, 0.25, n)
    looks = rng.normal(0, 1, (n, 6)).astype(np.float32)
    half = int(np.ceil((radius * ratio).max() * (1 + kind.ragged))) + 2
    corner = np.floor(places_um / um_per_pixel).astype(int)
    stamps = _stamps(places_um / um_per_pixel - corner, half, radius, ratio, angles, looks, kind)
    _put(canvas, stamps, corner - half)


def _stamps(
    part: ndarray, half: int, radius: ndarray, ratio: ndarray, angles: ndarray, looks: ndarray, kind: NucleusType,
) -> ndarray:
    """(N, w, w) float32, the stain of each nucleus in its own window."""
    axis = np.arange(-half, half + 1, dtype=np.float32)
    dy = axis[None, :, None] - _column(part[:, 0])
    dx = axis[None, None, :] - _column(part[:, 1])
    cos, sin, long, short = (_column(one) for one in (np.cos(angles), np.sin(angles), radius * ratio, radius / ratio))
    u, v = (dx * cos + dy * sin) / long, (dy * cos - dx * sin) / short
    r2 = u * u + v * v
    r = np.sqrt(r2) + np.float32(1e-3)
    bend = _column(looks[:, 0]) * (u * u - v * v) * u + _column(looks[:, 1]) * (u + v) * v * r
    r = r + np.float32(kind.ragged * 0.5) * bend / (r2 + np.float32(0.3))
    cover = np.clip((1 - r) * _column(radius) + np.float32(0.5), 0, 1)
    stain = kind.chromatin + kind.rim * np.clip(1 - np.abs(r - 0.86) * 4, 0, 1)
    if kind.nucleoli:
        for row, column in ((2, 3), (4, 5)):
            d2 = (u - 0.28 * _column(looks[:, row])) ** 2 + (v - 0.28 * _column(looks[:, column])) ** 2
            stain = stain + np.float32(kind.nucleoli) * np.clip(1 - d2 * 11, 0, 1)
    strength = np.exp(0.12 * looks[:, 5])
    return (cover * stain * _column(strength)).astype(np.float32)


def _put(canvas: ndarray, stamps: ndarray, corners: ndarray) -> None:
    width, side = stamps.shape[1], len(canvas)
    inside = ((corners > -width) & (corners < side)).all(axis=1)
    for stamp, (row, column) in zip(stamps[inside], corners[inside].tolist()):
        top, left, bottom, right = max(row, 0), max(column, 0), min(row + width, side), min(column + width, side)
        view = canvas[top:bottom, left:right]
        np.maximum(view, stamp[top - row : bottom - row, left - column : right - column], out=view)


def _column(values: ndarray) -> ndarray:
    return values.astype(np.float32)[:, None, None]
