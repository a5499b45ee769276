"""What light an eye sends back: choroid, atrophy, disc, cup, nerve fibres, spots and vessels, in linear RGB."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from medfed.phantoms.synthesis.retina_eye import Eye
from medfed.phantoms.synthesis.retina_vessels import vessel_absorption
from medfed.phantoms.synthesis.shapes import Grid, random_field

FIELD_MM = (1.0, 4.0, 4.0)  # half of what textures cover: one layer, and more than any camera sees
CHOROID = (0.60, 0.165, 0.060)  # reflectances, red green blue
RIM_PINK, RIM_PALE = (0.84, 0.27, 0.115), (0.86, 0.46, 0.21)
CUP_FLOOR = (1.00, 0.78, 0.42)
SCLERA = (0.86, 0.52, 0.27)
FIBRES = (0.10, 0.10, 0.075)
MELANIN = (0.75, 1.15, 1.15)  # absorption for all the pigment there is
ARTERY, VEIN = (0.20, 1.15, 0.95), (0.42, 1.50, 1.15)  # absorption of a vessel of 140 um
LENS = (0.02, 0.12, 0.55)  # an old lens is yellow


@dataclass(frozen=True, eq=False)
class Outlines:
    """disc, cup: (Y, X) distance to their edges in mm, negative inside."""

    disc: ndarray
    cup: ndarray


def outlines(eye: Eye, x: ndarray, y: ndarray) -> Outlines:
    """Disc and cup of one eye. The cup keeps to the disc's shape and lies inside it, whatever its offset."""
    rx, ry = eye.disc_mm
    cup = (rx * min(eye.cup_ratio * eye.cup_width, 0.9), ry * eye.cup_ratio)
    away = [share * 0.5 * (outer - inner) for share, outer, inner in zip(eye.cup_offset, eye.disc_mm, cup)]
    disc = _outline(eye, x, y, eye.disc_mm, 1.0)
    return Outlines(disc, np.maximum(_outline(eye, x - away[0], y - away[1], cup, 0.6), disc + 0.03))


def _outline(eye: Eye, x: ndarray, y: ndarray, radii: tuple[float, float], wobble: float) -> ndarray:
    """Distance to a bent ellipse, whose height is twice its second radius."""
    tilt = np.radians(eye.tilt_degrees)
    cos, sin = float(np.cos(tilt)), float(np.sin(tilt))
    place = (cos * x + sin * y) / radii[0] + np.complex64(1j) * ((cos * y - sin * x) / radii[1])
    away = np.abs(place)
    turn = place / np.maximum(away, 1e-6)  # cos and sin of the angle; its powers are those of its multiples
    second, third, fourth = (np.complex64(complex(a, -b) * wobble) for a, b in zip(*eye.wobble, strict=True))
    bend = 1 + (turn * turn * (second + turn * (third + turn * fourth))).real
    return (away / bend - 1) * min(radii)


def reflectance(eye: Eye, grid: Grid, shape: Outlines) -> ndarray:
    """(Y, X, 3) share of the light that comes back, 0 to about 1; `shape` as `outlines` gives it over the grid."""
    x, y = grid.x[0], grid.y[0]
    rng = np.random.default_rng(eye.texture_seed)
    image = _choroid(eye, grid, rng)
    _lay(image, SCLERA, _crescent(eye, x, y, shape.disc) * (0.42 + 0.18 * _field(grid, rng, 0.10)))
    image += _streaks(eye, x, y, shape.disc, rng)[..., None] * _float32(FIBRES)
    for sx, sy, radius, brightness in eye.spots:
        _lay(image, (0.80, 0.48, 0.20), 0.6 * brightness * _fall(np.hypot(x - sx, y - sy) - radius, radius))
    _lay_disc(image, eye, grid, shape, rng)
    return _before(image, eye, grid)


def _choroid(eye: Eye, grid: Grid, rng: np.random.Generator) -> ndarray:
    """The background: pigment over blood, mottled; between the choroid's vessels, pigment is dense."""
    network = np.maximum(*(np.exp(-((_field(grid, rng, grain) / 0.55) ** 2)) for grain in (0.22, 0.36)))
    network = network * np.clip(0.7 + 0.45 * _field(grid, rng, 0.7), 0.1, 1.1)
    mottle = 0.05 * _field(grid, rng, 0.05) + 0.07 * _field(grid, rng, 0.16) + 0.10 * _field(grid, rng, 0.9)
    pigment = eye.melanin * (1 - 0.25 * mottle) + eye.tessellation * (0.45 - 0.75 * network)
    absorbed = pigment[..., None] * _float32(MELANIN) + mottle[..., None] * _float32((0.5, 0.9, 0.9))
    red = eye.tessellation * network[..., None] * _float32((0.0, 0.30, 0.35))  # through the gaps one sees blood
    return _float32(CHOROID) * np.exp(-absorbed - red) * np.float32(1.25)


def _crescent(eye: Eye, x: ndarray, y: ndarray, disc: ndarray) -> ndarray:
    """Cover of the atrophy beside the disc, widest in one direction and gone at right angles to it."""
    if not eye.crescent_mm:
        return np.zeros(x.shape, np.float32)
    facing = np.cos(np.arctan2(y, x) - np.radians(eye.crescent_degrees))
    return _fall(disc - eye.crescent_mm * np.clip(facing, 0, 1) ** 1.5, 0.10) * np.clip(2.5 * facing, 0, 1)


def _streaks(eye: Eye, x: ndarray, y: ndarray, disc: ndarray, rng: np.random.Generator) -> ndarray:
    """Nerve fibres: fine rays in two bundles, above and below, that bend to the temple and fade away from the disc."""
    bent = np.arctan2(y, x + 0.25 * np.abs(y))
    rays = sum(np.sin(k * bent + rng.uniform(0, 2 * np.pi)) for k in rng.integers(25, 90, 6)) / 3.0
    bundles = np.exp(-(((np.abs(bent) - 1.25) / 0.5) ** 2))
    return eye.fibres * bundles * np.exp(-np.clip(disc, 0, None) / 0.9) * np.clip(0.6 + 0.4 * rays, 0, 2)


def _lay_disc(image: ndarray, eye: Eye, grid: Grid, shape: Outlines, rng: np.random.Generator) -> None:
    """Rim and cup over the rest; the nasal rim is pinker and its edge more blurred."""
    x, y = grid.x[0], grid.y[0]
    temporal = 0.5 + 0.5 * x / np.hypot(x, y).clip(1e-3)
    edge_mm = eye.rim_edge_mm[1] + (eye.rim_edge_mm[0] - eye.rim_edge_mm[1]) * temporal
    pale = np.clip(eye.pallor + 0.35 * (temporal - 0.5) + 0.06 * _field(grid, rng, 0.3), 0, 1)[..., None]
    rim = _float32(RIM_PINK) + pale * (_float32(RIM_PALE) - _float32(RIM_PINK))
    ring = 0.35 * np.exp(-(((shape.disc - 0.01) / 0.04) ** 2)) * temporal  # the sclera shows at the edge
    _lay(image, rim * (1 + 0.04 * _field(grid, rng, 0.1)[..., None]), _fall(shape.disc, edge_mm))
    _lay(image, SCLERA, ring)
    sieve = 1 - 0.06 * np.clip(_field(grid, rng, 0.06), -1, 2)[..., None]  # pores of the lamina cribrosa
    floor = _fall(shape.cup, eye.cup_edge_mm) * (0.30 + 0.70 * eye.cup_pallor)
    _lay(image, _float32(CUP_FLOOR) * sieve, floor)


def _before(image: ndarray, eye: Eye, grid: Grid) -> ndarray:
    """What lies before the retina: vessels with their reflex, and the lens."""
    filled = vessel_absorption(eye.vessels, grid.x[0], grid.y[0], grid.edge_mm)
    shine = (0.10 * filled.reflex)[..., None] * _float32((1.0, 0.62, 0.45))
    absorbed = filled.artery[..., None] * _float32(ARTERY) + filled.vein[..., None] * _float32(VEIN)
    seen = image * np.exp(-absorbed) + shine * image.mean(-1, keepdims=True) * 2.5
    clouded = seen * np.exp(-eye.lens * _float32(LENS))
    return clouded + 0.18 * eye.lens * (clouded.mean((0, 1)) - clouded)


def _float32(colour: tuple[float, float, float] | ndarray) -> ndarray:
    return np.asarray(colour, np.float32)


def _lay(image: ndarray, colour: tuple[float, float, float] | ndarray, cover: ndarray) -> None:
    image += np.clip(cover, 0, 1).astype(np.float32)[..., None] * (_float32(colour) - image)


def _fall(distance: ndarray, width: float | ndarray) -> ndarray:
    """1 inside, 0 outside, over about `width`."""
    return 1 / (1 + np.exp(np.clip(distance / (0.25 * width), -30, 30)))


def _field(grid: Grid, rng: np.random.Generator, grain_mm: float) -> ndarray:
    """(Y, X) smooth noise of unit variance; the same at any resolution."""
    return random_field(grid, rng, (1.0, grain_mm, grain_mm), FIELD_MM)[0]
