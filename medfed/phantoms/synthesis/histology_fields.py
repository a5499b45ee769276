"""Smooth random fields and fibre textures on a square image of `side` pixels."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy import ndarray


def smooth_field(rng: np.random.Generator, side: int, scale: float) -> ndarray:
    """Draw hills and valleys about `scale` pixels wide, (side, side), with mean about 0 and variance about 1."""
    basis = _basis(side, scale)
    return basis @ rng.standard_normal((basis.shape[1],) * 2, dtype=np.float32) @ basis.T


def fibre_texture(rng: np.random.Generator, side: int, period: float, angle: float) -> ndarray:
    """Draw wavy parallel fibres, (side, side) in [0, 1.3]; `period` in pixels, `angle` in radians, 0 is horizontal."""
    rows, columns = centred_grid(side)
    across = columns * np.float32(-np.sin(angle)) + rows * np.float32(np.cos(angle))
    wave = np.float32(1.2 * period) * smooth_field(rng, side, side / 4)
    wave += np.float32(0.5 * period) * smooth_field(rng, side, side / 16)
    fine = np.sin((across + wave) * np.float32(2 * np.pi / period))
    coarse = np.sin((across + 1.3 * wave) * np.float32(2 * np.pi / (3.7 * period)))
    return np.clip(0.72 + 0.16 * fine + 0.18 * coarse + 0.14 * smooth_field(rng, side, period / 4), 0, 1.3)


@lru_cache(maxsize=8)
def centred_grid(side: int) -> tuple[ndarray, ndarray]:
    """Return row (side, 1) and column coordinates (1, side) in pixels from the image's centre."""
    axis = np.arange(side, dtype=np.float32) - np.float32((side - 1) / 2)
    return axis[:, None], axis[None]


def soft_mask(field: ndarray, softness: float = 0.25) -> ndarray:
    """Return 1 where a field is positive, else 0, with a linear transition of width `softness`."""
    return np.clip(field / np.float32(softness) + np.float32(0.5), 0, 1)


@lru_cache(maxsize=64)
def _basis(side: int, scale: float) -> ndarray:
    """Gaussian basis functions (side, n), `scale` pixels apart; each row has norm 1."""
    places = np.arange(-1.5 * scale, side + 1.5 * scale + 1e-6, scale)
    bumps = np.exp(-0.5 * ((np.arange(side)[:, None] - places) / (0.75 * scale)) ** 2)
    return (bumps / np.linalg.norm(bumps, axis=1, keepdims=True)).astype(np.float32)
