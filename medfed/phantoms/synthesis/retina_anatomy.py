"""Reflectance of a synthetic retina in linear RGB: choroid, atrophy, disc, cup, nerve fibres, spots and vessels."""

from __future__ import annotations

import numpy as np
from numpy import ndarray

from medfed.phantoms.synthesis.retina_eye import Eye
from medfed.phantoms.synthesis.retina_vessels import vessel_absorption
from medfed.phantoms.synthesis.shapes import Grid, random_field

FIELD_MM = (1.0, 4.0, 4.0)  # z, y, x: extent of the textures around the origin, wider than every camera's field
CHOROID = (0.60, 0.165, 0.060)  # reflectance of red, green and blue; so are the next four
RIM_PINK, RIM_PALE = (0.84, 0.27, 0.115), (0.86, 0.46, 0.21)
CUP_FLOOR = (1.00, 0.78, 0.42)
SCLERA = (0.86, 0.52, 0.27)
FIBRES = (0.10, 0.10, 0.075)
MELANIN = (0.75, 1.15, 1.15)  # absorbance of red, green and blue at full pigmentation
ARTERY, VEIN = (0.20, 1.15, 0.95), (0.42, 1.50, 1.15)  # absorbance of a vessel with a diameter of 140 um
LENS = (0.02, 0.12, 0.55)  # absorbance of a fully yellowed lens


def outlines(eye: Eye, x: ndarray, y: ndarray) -> tuple[ndarray, ndarray]:
    """Return signed distances (Y, X) to the edges of disc and cup in mm; `x` leads to the temple, `y` down."""
    rx, ry = eye.disc_mm
    cup = (rx * min(eye.cup_ratio * eye.cup_width, 0.9), ry * eye.cup_ratio)
    away = [share * 0.5 * (outer - inner) for share, outer, inner in zip(eye.cup_offset, eye.disc_mm, cup)]
    disc = _outline(eye, x, y, eye.disc_mm, 1.0)
    return disc, np.maximum(_outline(eye, x - away[0], y - away[1], cup, 0.6), disc + 0.03)


def _outline(eye: Eye, x: ndarray, y: ndarray, radii: tuple[float, float], wobble: float) -> ndarray:
    """Signed distance in mm, (Y, X), to an ellipse with an irregular outline; `radii` are (x, y) in mm."""
    tilt = np.radians(eye.tilt_degrees)
    cos, sin = float(np.cos(tilt)), float(np.sin(tilt))
    place = (cos * x + sin * y) / radii[0] + np.complex64(1j) * ((cos * y - sin * x) / radii[1])
    away = np.abs(place)
    direction = place / np.maximum(away, 1e-6)  # exp(i angle); its powers give cos and sin of multiples of the angle
    second, third, fourth = (np.complex64(complex(a, -b) * wobble) for a, b in zip(*eye.wobble, strict=True))
    bend = 1 + (direction * direction * (second + direction * (third + direction * fourth))).real
    return (away / bend - 1) * min(radii)


def reflectance(eye: Eye, grid: Grid, disc: ndarray, cup: ndarray) -> ndarray:
    """Return the reflected fraction of red, green and blue light, (Y, X, 3), on a grid of one layer."""
    x, y = grid.x[0], grid.y[0]
    rng = np.random.default_rng(eye.texture_seed)
    image = _choroid(eye, grid, rng)
    _blend(image, SCLERA, _crescent(eye, x, y, disc) * (0.42 + 0.18 * _field(grid, rng, 0.10)))
    image += _streaks(eye, x, y, disc, rng)[..., None] * _float32(FIBRES)
    for sx, sy, radius, brightness in eye.spots:
        _blend(image, (0.80, 0.48, 0.20), 0.6 * brightness * _soft_step(np.hypot(x - sx, y - sy) - radius, radius))
    _blend_disc(image, eye, grid, disc, cup, rng)
    return _add_vessels_and_lens(image, eye, grid)


def _choroid(eye: Eye, grid: Grid, rng: np.random.Generator) -> ndarray:
    """The background (Y, X, 3): mottled pigment above blood. Pigment is dense between choroidal vessels."""
    network = np.maximum(*(np.exp(-((_field(grid, rng, grain) / 0.55) ** 2)) for grain in (0.22, 0.36)))
    network = network * np.clip(0.7 + 0.45 * _field(grid, rng, 0.7), 0.1, 1.1)
    mottle = 0.05 * _field(grid, rng, 0.05) + 0.07 * _field(grid, rng, 0.16) + 0.10 * _field(grid, rng, 0.9)
    pigment = eye.melanin * (1 - 0.25 * mottle) + eye.tessellation * (0.45 - 0.75 * network)
    absorbed = pigment[..., None] * _float32(MELANIN) + mottle[..., None] * _float32((0.5, 0.9, 0.9))
    red = eye.tessellation * network[..., None] * _float32((0.0, 0.30, 0.35))  # blood shows in the gaps
    return _float32(CHOROID) * np.exp(-absorbed - red) * np.float32(1.25)


def _crescent(eye: Eye, x: ndarray, y: ndarray, disc: ndarray) -> ndarray:
    """Coverage (Y, X) of the crescent-shaped atrophy next to the disc, in [0, 1]."""
    if not eye.crescent_mm:
        return np.zeros(x.shape, np.float32)
    facing = np.cos(np.arctan2(y, x) - np.radians(eye.crescent_degrees))
    return _soft_step(disc - eye.crescent_mm * np.clip(facing, 0, 1) ** 1.5, 0.10) * np.clip(2.5 * facing, 0, 1)


def _streaks(eye: Eye, x: ndarray, y: ndarray, disc: ndarray, rng: np.random.Generator) -> ndarray:
    """Brightness (Y, X) of the nerve fibres: two bundles, above and below, that bend to the temple."""
    bent = np.arctan2(y, x + 0.25 * np.abs(y))
    rays = sum(np.sin(k * bent + rng.uniform(0, 2 * np.pi)) for k in rng.integers(25, 90, 6)) / 3.0
    bundles = np.exp(-(((np.abs(bent) - 1.25) / 0.5) ** 2))
    return eye.fibres * bundles * np.exp(-np.clip(disc, 0, None) / 0.9) * np.clip(0.6 + 0.4 * rays, 0, 2)


def _blend_disc(image: ndarray, eye: Eye, grid: Grid, disc: ndarray, cup: ndarray, rng: np.random.Generator) -> None:
    """Blend the rim and the cup into the image, in place; the nasal rim is pinker and has a softer edge."""
    x, y = grid.x[0], grid.y[0]
    temporal = 0.5 + 0.5 * x / np.hypot(x, y).clip(1e-3)
    edge_mm = eye.rim_edge_mm[1] + (eye.rim_edge_mm[0] - eye.rim_edge_mm[1]) * temporal
    pale = np.clip(eye.pallor + 0.35 * (temporal - 0.5) + 0.06 * _field(grid, rng, 0.3), 0, 1)[..., None]
    rim = _float32(RIM_PINK) + pale * (_float32(RIM_PALE) - _float32(RIM_PINK))
    ring = 0.35 * np.exp(-(((disc - 0.01) / 0.04) ** 2)) * temporal  # the sclera is visible at the edge
    _blend(image, rim * (1 + 0.04 * _field(grid, rng, 0.1)[..., None]), _soft_step(disc, edge_mm))
    _blend(image, SCLERA, ring)
    sieve = 1 - 0.06 * np.clip(_field(grid, rng, 0.06), -1, 2)[..., None]  # pores of the lamina cribrosa
    floor = _soft_step(cup, eye.cup_edge_mm) * (0.30 + 0.70 * eye.cup_pallor)
    _blend(image, _float32(CUP_FLOOR) * sieve, floor)


def _add_vessels_and_lens(image: ndarray, eye: Eye, grid: Grid) -> ndarray:
    """Return the image (Y, X, 3) with what lies in front of the retina: vessels with their reflex, and the lens."""
    artery, vein, reflex = vessel_absorption(eye.vessels, grid.x[0], grid.y[0], grid.edge_mm)
    shine = (0.10 * reflex)[..., None] * _float32((1.0, 0.62, 0.45))
    absorbed = artery[..., None] * _float32(ARTERY) + vein[..., None] * _float32(VEIN)
    with_vessels = image * np.exp(-absorbed) + shine * image.mean(-1, keepdims=True) * 2.5
    clouded = with_vessels * np.exp(-eye.lens * _float32(LENS))
    return clouded + 0.18 * eye.lens * (clouded.mean((0, 1)) - clouded)


def _float32(colour: tuple[float, float, float] | ndarray) -> ndarray:
    return np.asarray(colour, np.float32)


def _blend(image: ndarray, colour: tuple[float, float, float] | ndarray, cover: ndarray) -> None:
    """Blend a colour (3,) or (Y, X, 3) into an image (Y, X, 3), in place, with the opacity `cover` (Y, X)."""
    image += np.clip(cover, 0, 1).astype(np.float32)[..., None] * (_float32(colour) - image)


def _soft_step(distance: ndarray, width: float | ndarray) -> ndarray:
    """A smooth step from 1 at negative to 0 at positive distances; the transition is about `width` wide."""
    return 1 / (1 + np.exp(np.clip(distance / (0.25 * width), -30, 30)))


def _field(grid: Grid, rng: np.random.Generator, grain_mm: float) -> ndarray:
    """Smooth noise (Y, X) of unit variance with structures of size `grain_mm`, independent of resolution."""
    return random_field(grid, rng, (1.0, grain_mm, grain_mm), FIELD_MM)[0]
