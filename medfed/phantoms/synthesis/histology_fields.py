"""Smooth random fields and fibres on a square of tissue: cheap, because a field is two thin matrix products."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy import ndarray


def smooth_field(rng: np.random.Generator, side: int, scale: float) -> ndarray:
    """(side, side) float32 of mean about 0 and variance about 1, alike over `scale` pixels."""
    basis = _basis(side, scale)
    return basis @ rng.standard_normal((basis.shape[1],) * 2, dtype=np.float32) @ basis.T


def fibre_texture(rng: np.random.Generator, side: int, period: float, angle: float) -> ndarray:
    """(side, side) float32 from 0 to 1.3: wavy bundles along `angle` (radians), `period` pixels apart."""
    rows, columns = centred_grid(side)
    across = columns * np.float32(-np.sin(angle)) + rows * np.float32(np.cos(angle))
    wave = np.float32(1.2 * period) * smooth_field(rng, side, side / 4)
    wave += np.float32(0.5 * period) * smooth_field(rng, side, side / 16)
    fine = np.sin((across + wave) * np.float32(2 * np.pi / period))
    coarse = np.sin((across + 1.3 * wave) * np.float32(2 * np.pi / (3.7 * period)))
    return np.clip(0.72 + 0.16 * fine + 0.18 * coarse + 0.14 * smooth_field(rng, side, period / 4), 0, 1.3)


@lru_cache(maxsize=8)
def centred_grid(side: int) -> tuple[ndarray, ndarray]:
    """Rows (side, 1) and columns (1, side), 0 in the middle."""
    axis = np.arange(side, dtype=np.float32) - np.float32((side - 1) / 2)
    return axis[:, None], axis[None]


def soft_mask(field: ndarray, softness: float = 0.25) -> ndarray:
    """A soft mask, 0 to 1, of where a field is above 0."""
    return np.clip(field / np.float32(softness) + np.float32(0.5), 0, 1)


@lru_cache(maxsize=64)
def _basis(side: int, scale: float) -> ndarray:
    """(side, n): bumps a scale apart; the sum of squares is 1 in every row."""
    places = np.arange(-1.5 * scale, side + 1.5 * scale + 1e-6, scale)
    bumps = np.exp(-0.5 * ((np.arange(side)[:, None] - places) / (0.75 * scale)) ** 2)
    return (bumps / np.linalg.norm(bumps, axis=1, keepdims=True)).astype(np.float32)
