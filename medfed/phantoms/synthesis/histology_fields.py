"""Smooth random fields and fibre textures on a square image; a field is computed fast as two matrix products."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy import ndarray


def smooth_field(rng: np.random.Generator, side: int, scale: float) -> ndarray:
    """Draw a smooth random field: an image of random smooth hills and valleys.

    Args:
        rng: NumPy random generator.
        side: height and width in pixels.
        scale: typical width of the hills and valleys in pixels.

    Returns:
        (side, side) float32 with mean about 0 and variance about 1.
    """
    basis = _basis(side, scale)
    return basis @ rng.standard_normal((basis.shape[1],) * 2, dtype=np.float32) @ basis.T


def fibre_texture(rng: np.random.Generator, side: int, period: float, angle: float) -> ndarray:
    """Draw a random texture of wavy parallel fibre bundles.

    Args:
        rng: NumPy random generator.
        side: height and width in pixels.
        period: distance between neighbouring fibres in pixels.
        angle: direction of the fibres in radians; 0 is horizontal, pi / 2 is vertical.

    Returns:
        (side, side) float32 in [0, 1.3], amount of fibre at each pixel, without unit; about 0.7 on average.
    """
    rows, columns = centred_grid(side)
    across = columns * np.float32(-np.sin(angle)) + rows * np.float32(np.cos(angle))
    wave = np.float32(1.2 * period) * smooth_field(rng, side, side / 4)
    wave += np.float32(0.5 * period) * smooth_field(rng, side, side / 16)
    fine = np.sin((across + wave) * np.float32(2 * np.pi / period))
    coarse = np.sin((across + 1.3 * wave) * np.float32(2 * np.pi / (3.7 * period)))
    return np.clip(0.72 + 0.16 * fine + 0.18 * coarse + 0.14 * smooth_field(rng, side, period / 4), 0, 1.3)


@lru_cache(maxsize=8)
def centred_grid(side: int) -> tuple[ndarray, ndarray]:
    """Return the row and column coordinates of the pixels of a square image, relative to its centre.

    Args:
        side: height and width of the image in pixels.

    Returns:
        Row coordinates (side, 1) and column coordinates (1, side), float32, in pixels; 0 is the centre of the image.
    """
    axis = np.arange(side, dtype=np.float32) - np.float32((side - 1) / 2)
    return axis[:, None], axis[None]


def soft_mask(field: ndarray, softness: float = 0.25) -> ndarray:
    """Compute a mask of the region where a field is positive. The mask has soft edges.

    Args:
        field: array of any shape.
        softness: width of the linear transition from 0 to 1, in the unit of the field.

    Returns:
        Array of the same shape in [0, 1]: 0 where the field is below -softness / 2, 0.5 where it is 0, and 1 where it
        is above softness / 2.
    """
    return np.clip(field / np.float32(softness) + np.float32(0.5), 0, 1)


@lru_cache(maxsize=64)
def _basis(side: int, scale: float) -> ndarray:
    """Compute Gaussian basis functions (side, n) whose centres are `scale` pixels apart; each row has norm 1."""
    places = np.arange(-1.5 * scale, side + 1.5 * scale + 1e-6, scale)
    bumps = np.exp(-0.5 * ((np.arange(side)[:, None] - places) / (0.75 * scale)) ** 2)
    return (bumps / np.linalg.norm(bumps, axis=1, keepdims=True)).astype(np.float32)
