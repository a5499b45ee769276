"""Procedural texture images, to train a style codec without images of patients.

The patterns are noise with different spectra, gratings, cells, blobs and gradients. They are coloured with palettes of
histological stains, skin, mucosa and retina, with random colours, or in grey.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray
from scipy import fft, ndimage

from medfed.phantoms.synthesis.collection import stream

PALETTES = {  # RGB in [0, 1], from dark to bright
    "haematoxylin_eosin": ((0.25, 0.12, 0.40), (0.55, 0.30, 0.60), (0.85, 0.55, 0.72), (0.97, 0.90, 0.95)),
    "diaminobenzidine": ((0.22, 0.12, 0.07), (0.50, 0.33, 0.20), (0.62, 0.68, 0.80), (0.95, 0.95, 0.96)),
    "skin": ((0.28, 0.16, 0.11), (0.62, 0.40, 0.30), (0.85, 0.64, 0.53), (0.98, 0.86, 0.78)),
    "mucosa": ((0.20, 0.03, 0.03), (0.55, 0.15, 0.10), (0.84, 0.42, 0.32), (1.00, 0.88, 0.80)),
    "retina": ((0.10, 0.02, 0.01), (0.45, 0.14, 0.05), (0.78, 0.36, 0.13), (1.00, 0.84, 0.55)),
}


def random_texture(seed: int, number: int, size: int = 128) -> ndarray:
    """Generate one random texture image, for training a style codec without images of patients.

    The image consists of two coloured patterns, one on each side of a random border, and a little noise. One image in
    four is grey.

    Args:
        seed: seed of the collection of textures.
        number: index of the image in the collection, from 0. The same seed and number always give the same image.
        size: height and width in pixels, at least 8.

    Returns:
        (3, size, size) float32 in [0, 1], RGB.

    Raises:
        ValueError: if size is below 8.
    """
    if size < 8:
        raise ValueError(f"size must be at least 8, got {size}")
    rng = stream(seed, "texture", number)
    first, second = (_paint(_pattern(size, rng), rng) for _ in range(2))
    border = _noise(size, rng, power=rng.uniform(2.5, 4)) - 0.5
    share = 1 / (1 + np.exp(-np.clip(border * rng.choice([20, 200]), -60, 60)))
    image = share * first + (1 - share) * second
    image += rng.choice([0, 0.01, 0.03, 0.06]) * rng.standard_normal((size, size))
    if rng.random() < 0.25:
        image[:] = image.mean(axis=0)
    return np.clip(image, 0, 1).astype(np.float32)


def _pattern(size: int, rng: np.random.Generator) -> ndarray:
    """Generate a random pattern of a random type, (size, size) in [0, 1]."""
    return _PATTERNS[rng.integers(len(_PATTERNS))](size, rng)


def _noise(size: int, rng: np.random.Generator, power: float | None = None) -> ndarray:
    """Generate noise whose amplitude falls as frequency^(-power / 2): white noise for 0, clouds for 3 and more."""
    power = rng.uniform(0, 3.5) if power is None else power
    frequency = np.hypot(*np.meshgrid(fft.fftfreq(size), fft.rfftfreq(size), indexing="ij"))
    frequency[0, 0] = np.inf
    spectrum = fft.rfft2(rng.standard_normal((size, size))) * frequency ** (-power / 2)
    return _rescale(fft.irfft2(spectrum, s=(size, size)))


def _grating(size: int, rng: np.random.Generator) -> ndarray:
    """Generate parallel waves, smooth or sharp, that are distorted by noise."""
    rows, columns = np.mgrid[:size, :size]
    angle, period = rng.uniform(0, np.pi), np.exp(rng.uniform(np.log(4), np.log(size / 2)))
    bend = rng.uniform(0, 1.5) * period * _noise(size, rng, power=3.5)
    waves = np.sin(2 * np.pi * (rows * np.sin(angle) + columns * np.cos(angle) + bend) / period)
    return _rescale(np.tanh(waves * rng.choice([0.5, 3, 20])))


def _cells(size: int, rng: np.random.Generator) -> ndarray:
    """Generate Voronoi cells with dark walls, filled with one grey value each or by the distance from their centre."""
    seeds = rng.uniform(0, size, (int(np.exp(rng.uniform(np.log(6), np.log(200)))), 2))
    pixels = np.stack([*np.mgrid[:size, :size]], axis=-1).reshape(-1, 1, 2)
    squared = ((pixels - seeds[None]) ** 2).sum(axis=-1)
    nearest = np.partition(squared, 1, axis=1)[:, :2]
    near, next_near = np.sqrt(nearest).T.reshape(2, size, size)
    flat = rng.random(len(seeds))[squared.argmin(axis=1)].reshape(size, size)
    wall = np.clip((next_near - near) / rng.uniform(1, 5), 0, 1)
    return np.clip(wall * (flat if rng.random() < 0.5 else _rescale(-near)), 0, 1)


def _blobs(size: int, rng: np.random.Generator) -> ndarray:
    """Generate round structures of one size with a sharp or soft edge, similar to nuclei, glands or drops."""
    field = ndimage.gaussian_filter(rng.standard_normal((size, size)), np.exp(rng.uniform(0, 2.2)), mode="wrap")
    steep = rng.choice([2, 10, 50])
    return 1 / (1 + np.exp(np.clip(-steep * (field / (field.std() + 1e-9) - rng.uniform(-0.5, 1.3)), -60, 60)))


def _gradient(size: int, rng: np.random.Generator) -> ndarray:
    """Generate a linear or radial gradient with up to four rectangles of one grey value each."""
    rows, columns = np.mgrid[:size, :size] / size
    angle, centre = rng.uniform(0, 2 * np.pi), rng.uniform(0, 1, 2)
    slope = rows * np.sin(angle) + columns * np.cos(angle)
    image = _rescale(slope if rng.random() < 0.5 else -np.hypot(rows - centre[0], columns - centre[1]))
    for _ in range(rng.integers(0, 5)):
        top, left = rng.integers(0, size - 3, 2)
        height, width = rng.integers(3, max(4, size // 2), 2)
        image[top : top + height, left : left + width] = rng.random()
    return image


_PATTERNS = (_noise, _grating, _cells, _blobs, _gradient)


def _paint(pattern: ndarray, rng: np.random.Generator) -> ndarray:
    """Colour a pattern (H, W) as (3, H, W) with a palette, random colours or grey, and a random contrast."""
    choice = rng.random()
    if choice < 0.5:
        stops = np.array(list(PALETTES.values())[rng.integers(len(PALETTES))]) + rng.normal(0, 0.05, (4, 3))
    elif choice < 0.8:
        stops = rng.random((4, 3))
    else:
        stops = np.sort(rng.random(4))[:, None].repeat(3, axis=1)
    low, high = sorted(rng.random(2))
    position = (low + (high - low) * pattern if rng.random() < 0.4 else pattern) ** np.exp(rng.normal(0, 0.4))
    places = np.linspace(0, 1, len(stops))
    return np.stack([np.interp(position, places, channel) for channel in stops.T])


def _rescale(field: ndarray) -> ndarray:
    """Map an array linearly to [0, 1]."""
    low, high = field.min(), field.max()
    return (field - low) / max(high - low, 1e-9)
