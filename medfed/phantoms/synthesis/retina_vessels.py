"""Random vessel trees of a synthetic retina, and the light that they absorb.

The main vessels leave the disc upwards and downwards, bend towards the temple or the nose, and branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy import ndarray
from scipy.spatial import cKDTree

STEP_MM = 0.03
REACH_MM = 3.4  # vessels end at this distance from the disc centre, outside the widest field of view
WIDE_MM = 0.035  # radius from which a vessel counts as wide
TRUNKS = (  # (initial direction, final direction, relative radius); degrees: 0 is temporal, 90 is down
    (-84, -30, 1.0),
    (84, 30, 1.0),
    (-100, -150, 0.8),
    (100, 150, 0.8),
)
TWIGS = ((-28, 0.42), (-8, 0.36), (14, 0.4), (32, 0.42), (165, 0.5), (190, 0.45), (212, 0.4))


@dataclass(frozen=True, eq=False)  # == of arrays is not a single truth value
class Vessel:
    """Segment without branches; points (N, 3) are x, y and radius in mm along the centre line, 0.03 mm apart."""

    artery: bool
    points: ndarray


def sample_vessels(rng: np.random.Generator, disc_mm: tuple[float, float]) -> tuple[Vessel, ...]:
    """Draw arteries and veins, which start near one point on the nasal side of the disc's centre."""
    centre = np.array([-0.22 * disc_mm[0], 0.0]) + rng.normal(0, 0.06, 2)
    tree: list[Vessel] = []
    for artery in (True, False):
        radius = (0.052 if artery else 0.070) * float(np.exp(rng.normal(0, 0.1)))
        for start, end, size in TRUNKS:
            origin = centre + rng.normal(0, 0.05, 2) + (0.05 if artery else -0.03, 0.1 * np.sign(start))
            headings = start + rng.normal(0, 9), end + rng.normal(0, 12)
            tree += _grow(rng, artery, origin, headings, radius * size, 2)
        for mean_heading, size in TWIGS:
            if rng.random() < 0.6:
                heading = mean_heading + rng.normal(0, 10)
                outwards = rng.uniform(0.05, 0.5) * np.array([np.cos(np.radians(heading)), np.sin(np.radians(heading))])
                origin = centre + outwards + rng.normal(0, (0.06, 0.2))
                tree += _grow(rng, artery, origin, (heading, heading + rng.normal(0, 18)), radius * size, 1)
    return tuple(tree)


def _grow(
    rng: np.random.Generator,
    artery: bool,
    origin: ndarray,
    headings: tuple[float, float],
    radius: float,
    generations: int,
) -> Iterator[Vessel]:
    """Yield a vessel and its branches; its direction changes from the first to the second of `headings` (degrees)."""
    path = _walk(rng, origin, headings)
    n, i = len(path), np.arange(len(path))
    leaving = np.sort(rng.uniform(0.25, 0.9, rng.integers(2, 5))) if generations and n > 20 else np.array([])
    at = (leaving * n).astype(int)
    narrowing = 1 - 0.12 * (i[:, None] >= at).sum(1) - 0.12 * i / n
    swelling = np.minimum(1, 0.75 + 0.25 * i * STEP_MM / 0.35)  # narrow where it enters the disc
    radii = np.maximum(radius * narrowing * swelling, 0.008)
    yield Vessel(artery, np.column_stack([path, radii]))
    for k in at:
        ahead = np.degrees(np.arctan2(*(path[min(k + 3, n - 1)] - path[max(k - 3, 0)])[::-1]))
        off = ahead + rng.choice((-1, 1)) * rng.uniform(25, 60)
        child = float(radii[k] * rng.uniform(0.5, 0.8))
        if child > 0.012:
            yield from _grow(rng, artery, path[k], (off, off + rng.normal(0, 25)), child, generations - 1)


def _walk(rng: np.random.Generator, origin: ndarray, headings: tuple[float, float]) -> ndarray:
    """Sample the centre line of a vessel, (N, 2) in mm, from the origin to the distance `REACH_MM`."""
    n = int(1.5 * REACH_MM / STEP_MM)
    s = np.arange(n) * STEP_MM
    turn = 1 / (1 + np.exp(-(s - 1.5) / 0.5))
    waves = sum(
        rng.normal(0, degrees) * (np.sin(2 * np.pi * s / length + rng.uniform(0, 2 * np.pi)))
        for length, degrees in ((2.2, 12), (1.0, 11), (0.55, 6))
    )
    angle = np.radians(headings[0] + (headings[1] - headings[0]) * turn + waves)
    path = origin + np.cumsum(STEP_MM * np.column_stack([np.cos(angle), np.sin(angle)]), axis=0)
    outside = np.hypot(*path.T) > REACH_MM
    return path[: int(outside.argmax()) + 1] if outside.any() else path


def vessel_absorption(
    vessels: tuple[Vessel, ...], x: ndarray, y: ndarray, pixel_mm: float
) -> tuple[ndarray, ndarray, ndarray]:
    """Return the light path through arterial and venous blood, 1 for a diameter of 0.14 mm, and the reflex, (Y, X)."""
    pixels = np.column_stack([x.ravel(), y.ravel()])
    low, high = pixels.min(0) - 0.1, pixels.max(0) + 0.1
    columns, reflex = {}, np.zeros(x.shape, np.float32)
    for artery in (True, False):
        points = np.concatenate([np.empty((0, 3)), *(vessel.points for vessel in vessels if vessel.artery == artery)])
        points = points[(points[:, :2] > low).all(1) & (points[:, :2] < high).all(1)]
        column = np.zeros(x.shape, np.float32)
        for chosen in (points[:, 2] >= WIDE_MM, points[:, 2] < WIDE_MM):
            if chosen.any():
                depth, shine = _cross_section(points[chosen], pixels, pixel_mm)
                column = np.maximum(column, depth.reshape(x.shape))
                reflex = np.maximum(reflex, (1.0 if artery else 0.45) * shine.reshape(x.shape))
        columns[artery] = column
    return columns[True], columns[False], reflex


def _cross_section(points: ndarray, pixels: ndarray, pixel_mm: float) -> tuple[ndarray, ndarray]:
    """Relative depth of blood and the reflex of each pixel (N,), from the nearest vessel point."""
    tree = cKDTree(points[:, :2], balanced_tree=False, compact_nodes=False)
    distance, nearest = tree.query(pixels, distance_upper_bound=points[:, 2].max() + pixel_mm)
    hit = np.isfinite(distance)
    depth, shine = np.zeros(len(pixels), np.float32), np.zeros(len(pixels), np.float32)
    radius = points[nearest[hit], 2]
    visible_radius = np.maximum(radius, 0.6 * pixel_mm)  # a vessel thinner than a pixel is drawn paler instead
    offset = distance[hit] / visible_radius
    depth[hit] = (radius / 0.07) ** 0.7 * np.sqrt(np.clip(1 - offset**2, 0, 1)) * np.sqrt(radius / visible_radius)
    shine[hit] = np.exp(-((offset / 0.28) ** 2)) * np.clip((radius - 0.02) / 0.04, 0, 1)
    return depth, shine
