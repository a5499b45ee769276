"""Cell nuclei of the histology phantom: their positions, and the stain of each nucleus."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray


@dataclass(frozen=True)
class NucleusType:
    """Appearance of one type of nuclei."""

    radius_um: float  # mean
    spread: float  # standard deviation of the logarithm of the radius
    elongation: tuple[float, float]  # lowest and highest ratio of length to width
    irregularity: float  # deviation of the outline from an ellipse
    chromatin: float  # stain inside the nucleus
    rim: float  # additional stain at the edge
    nucleoli: float = 0.0  # additional stain of two small dots


def jittered_lattice(rng: np.random.Generator, side_um: float, spacing_um: float, jitter: float = 0.30) -> ndarray:
    """Draw cell positions (N, 2) in micrometres: a triangular lattice, which keeps cells apart, with a jitter."""
    rows = np.arange(-spacing_um, side_um + spacing_um, spacing_um * 0.866)
    columns = np.arange(-spacing_um, side_um + spacing_um, spacing_um)
    shift = rng.uniform(0, spacing_um, 2)
    y, x = np.meshgrid(rows, columns, indexing="ij")
    x = x + (np.arange(len(rows)) % 2 * spacing_um / 2)[:, None]
    places = np.stack([y.ravel(), x.ravel()], 1) - shift / 2
    return places + rng.normal(0, jitter / 2 * spacing_um, places.shape)


def draw_nuclei(
    stain_image: ndarray,
    centres_um: ndarray,
    nucleus_type: NucleusType,
    um_per_pixel: float,
    rng: np.random.Generator,
    angle: float | None = None,
) -> None:
    """Draw nuclei into an image of the haematoxylin stain (side, side), in place; `angle` None is random."""
    n = len(centres_um)
    if not n:
        return
    radius = nucleus_type.radius_um * np.exp(nucleus_type.spread * np.clip(rng.normal(0, 1, n), -2, 2)) / um_per_pixel
    ratio = np.sqrt(rng.uniform(*nucleus_type.elongation, n))
    angles = rng.uniform(0, np.pi, n) if angle is None else angle + rng.normal(0, 0.25, n)
    variation = rng.normal(0, 1, (n, 6)).astype(np.float32)
    half = int(np.ceil((radius * ratio).max() * (1 + nucleus_type.irregularity))) + 2
    corner = np.floor(centres_um / um_per_pixel).astype(int)
    stamps = _stamps(centres_um / um_per_pixel - corner, half, radius, ratio, angles, variation, nucleus_type)
    _place_stamps(stain_image, stamps, corner - half)


def _stamps(
    part: ndarray,
    half: int,
    radius: ndarray,
    ratio: ndarray,
    angles: ndarray,
    variation: ndarray,
    nucleus_type: NucleusType,
) -> ndarray:
    """Stain of each nucleus in its own small image, (N, w, w) with w = 2 * half + 1."""
    axis = np.arange(-half, half + 1, dtype=np.float32)
    dy = axis[None, :, None] - _column(part[:, 0])
    dx = axis[None, None, :] - _column(part[:, 1])
    cos, sin, long, short = (_column(one) for one in (np.cos(angles), np.sin(angles), radius * ratio, radius / ratio))
    u, v = (dx * cos + dy * sin) / long, (dy * cos - dx * sin) / short
    r2 = u * u + v * v
    r = np.sqrt(r2) + np.float32(1e-3)
    bend = _column(variation[:, 0]) * (u * u - v * v) * u + _column(variation[:, 1]) * (u + v) * v * r
    r = r + np.float32(nucleus_type.irregularity * 0.5) * bend / (r2 + np.float32(0.3))
    cover = np.clip((1 - r) * _column(radius) + np.float32(0.5), 0, 1)
    stain = nucleus_type.chromatin + nucleus_type.rim * np.clip(1 - np.abs(r - 0.86) * 4, 0, 1)
    if nucleus_type.nucleoli:
        for row, column in ((2, 3), (4, 5)):
            d2 = (u - 0.28 * _column(variation[:, row])) ** 2 + (v - 0.28 * _column(variation[:, column])) ** 2
            stain = stain + np.float32(nucleus_type.nucleoli) * np.clip(1 - d2 * 11, 0, 1)
    strength = np.exp(0.12 * variation[:, 5])
    return (cover * stain * _column(strength)).astype(np.float32)


def _place_stamps(stain_image: ndarray, stamps: ndarray, corners: ndarray) -> None:
    """Insert small images (N, w, w) with their top left corners at `corners` (N, 2), in place."""
    width, side = stamps.shape[1], len(stain_image)
    inside = ((corners > -width) & (corners < side)).all(axis=1)
    for stamp, (row, column) in zip(stamps[inside], corners[inside].tolist()):
        top, left, bottom, right = max(row, 0), max(column, 0), min(row + width, side), min(column + width, side)
        view = stain_image[top:bottom, left:right]
        np.maximum(view, stamp[top - row : bottom - row, left - column : right - column], out=view)


def _column(values: ndarray) -> ndarray:
    """(N,) as float32 (N, 1, 1), to combine N values with pixels."""
    return values.astype(np.float32)[:, None, None]
