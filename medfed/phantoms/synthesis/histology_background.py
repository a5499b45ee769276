"""Tissue of the histology phantom outside the tumour: cortex, germinal centre, sinus, capsule, fat, or empty glass.

In all functions `side` is the height and width of the image in pixels, and `um` is the pixel size in micrometres.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from medfed.phantoms.synthesis.histology_cells import NucleusType, jittered_lattice
from medfed.phantoms.synthesis.histology_fields import centred_grid, fibre_texture, smooth_field, soft_mask
from medfed.phantoms.synthesis.histology_patient import HistologyPatient

CENTROBLAST = NucleusType(
    radius_um=4.5, spread=0.10, elongation=(1.0, 1.25), irregularity=0.10, chromatin=0.75, rim=0.40, nucleoli=0.35
)
HISTIOCYTE = NucleusType(
    radius_um=3.9, spread=0.12, elongation=(1.2, 2.0), irregularity=0.12, chromatin=0.65, rim=0.25, nucleoli=0.15
)


@dataclass(frozen=True)
class BackgroundTissue:
    """Tissue outside the tumour: maps (side, side) of stain and of cell density, from 0 to the densest packing 1."""

    lymphocytes: ndarray  # density
    eosin: ndarray  # amount outside the nuclei; 1 is an optical density vector (red, green, blue) of norm 1
    blood: ndarray  # 1 inside a vessel
    spindle: ndarray  # density of fibroblasts
    angle: float  # direction of the fibroblasts in radians
    large: ndarray  # density of large round cells
    large_kind: NucleusType = HISTIOCYTE


def cortex(patient: HistologyPatient, rng: np.random.Generator, side: int, um: float) -> BackgroundTissue:
    """Densely packed lymphocytes, a few large cells, and a fine mesh of fibres."""
    dense = rng.uniform(0.6, 1.1) + rng.uniform(0, 0.25) * smooth_field(rng, side, 16 / um)
    few_large_cells = np.full((side, side), rng.uniform(0, 0.30), np.float32)
    return BackgroundTissue(dense, _mesh(rng, side, um), _zeros(side), _zeros(side), 0.0, few_large_cells)


def germinal_centre(patient: HistologyPatient, rng: np.random.Generator, side: int, um: float) -> BackgroundTissue:
    """The edge of a germinal centre: large pale cells inside, densely packed lymphocytes outside."""
    start = cortex(patient, rng, side, um)
    inside = soft_mask(_edge(rng, side, um, rng.uniform(-10, 45)), 12)
    eosin = start.eosin * (1 - inside) + inside * (rng.uniform(0.35, 0.75) + 0.08 * smooth_field(rng, side, 3 / um))
    return BackgroundTissue(
        start.lymphocytes * (1 - 0.8 * inside), eosin, _zeros(side), _zeros(side), 0.0, inside, CENTROBLAST
    )


def sinus(patient: HistologyPatient, rng: np.random.Generator, side: int, um: float) -> BackgroundTissue:
    """A pale channel with fluid and histiocytes that runs through the cortex."""
    start = cortex(patient, rng, side, um)
    width = rng.uniform(0.4, 1.1)
    channel = soft_mask(width - np.abs(smooth_field(rng, side, 34 / um)), 0.15)
    eosin = start.eosin * (1 - channel) + channel * np.clip(0.12 + 0.16 * smooth_field(rng, side, 4 / um), 0, 0.5)
    large = np.maximum(start.large * (1 - channel), channel * rng.uniform(0.5, 1.0))
    return BackgroundTissue(start.lymphocytes * (1 - 0.85 * channel), eosin, _zeros(side), _zeros(side), 0.0, large)


def capsule(patient: HistologyPatient, rng: np.random.Generator, side: int, um: float) -> BackgroundTissue:
    """Collagen bundles with fibroblasts and clefts at the edge of the cortex, in a third of the draws next to glass."""
    start, angle = cortex(patient, rng, side, um), rng.uniform(0, np.pi)
    bundles = fibre_texture(rng, side, rng.uniform(4, 7) / um, angle)
    inside = soft_mask(_edge(rng, side, um, rng.uniform(0, 60)), 6)
    clefts = soft_mask(smooth_field(rng, side, 9 / um) - rng.uniform(0.9, 2.0), 0.4)
    collagen = patient.collagen * bundles * (1 - clefts)
    glass = soft_mask(_edge(rng, side, um, rng.uniform(-30, 5)), 4) if rng.random() < 0.35 else _zeros(side)
    tissue = 1 - glass
    blood = _vessel(rng, side, um) * inside * tissue if rng.random() < 0.35 else _zeros(side)
    eosin = (start.eosin * (1 - inside) + inside * collagen) * tissue * (1 - blood)
    lymphocytes = start.lymphocytes * (1 - 0.93 * inside) * tissue
    return BackgroundTissue(lymphocytes, eosin, blood, inside * tissue, angle, _zeros(side))


def fat(patient: HistologyPatient, rng: np.random.Generator, side: int, um: float) -> BackgroundTissue:
    """Round empty fat cells with thin walls at the edge of the cortex."""
    start = cortex(patient, rng, side, um)
    places, (rows, columns) = jittered_lattice(rng, side * um, rng.uniform(42, 58)), centred_grid(side)
    radius = np.exp(rng.normal(0, 0.12, len(places))) * rng.uniform(19, 24)
    gap = np.full((side, side), 99.0, np.float32)
    for (y, x), size in zip(places / um - (side - 1) / 2, radius / um):
        gap = np.minimum(gap, np.hypot(rows - np.float32(y), columns - np.float32(x)) - np.float32(size))
    inside = soft_mask(_edge(rng, side, um, rng.uniform(-15, 60)), 6)
    empty = inside * np.clip(0.5 - gap * um / 1.5, 0, 1)
    eosin = (start.eosin * (1 - inside) + 0.5 * inside) * (1 - empty)
    return BackgroundTissue(
        start.lymphocytes * (1 - 0.9 * inside) * (1 - empty),
        eosin,
        _zeros(side),
        inside - empty,
        0.0,
        start.large * (1 - inside),
    )


def blank(patient: HistologyPatient, rng: np.random.Generator, side: int, um: float) -> BackgroundTissue:
    """Empty glass with a few specks."""
    specks = 0.4 * soft_mask(smooth_field(rng, side, 3 / um) - rng.uniform(2.6, 4.0), 0.8)
    return BackgroundTissue(_zeros(side), specks.astype(np.float32), _zeros(side), _zeros(side), 0.0, _zeros(side))


def _mesh(rng: np.random.Generator, side: int, um: float) -> ndarray:
    """Eosin of cytoplasm and fibres between lymphocytes, (side, side)."""
    return np.clip(rng.uniform(0.22, 0.85) + 0.24 * smooth_field(rng, side, 3.2 / um), 0.02, 1.2)


def _edge(rng: np.random.Generator, side: int, um: float, offset_um: float) -> ndarray:
    """Signed distance in micrometres, positive inside, to a wavy edge that passes the centre at `offset_um`."""
    angle, (rows, columns) = rng.uniform(0, 2 * np.pi), centred_grid(side)
    line = (columns * np.float32(np.cos(angle)) + rows * np.float32(np.sin(angle))) * np.float32(um)
    return line + np.float32(offset_um) + 7 * smooth_field(rng, side, 20 / um)


def _vessel(rng: np.random.Generator, side: int, um: float) -> ndarray:
    """A round vessel filled with red blood cells, (side, side) in [0, 1]."""
    (rows, columns), (y, x) = centred_grid(side), rng.uniform(-0.35, 0.35, 2) * side
    inside = soft_mask(rng.uniform(9, 20) - np.hypot(rows - y, columns - x).astype(np.float32) * um, 3)
    return inside * soft_mask(smooth_field(rng, side, 3.2 / um) + 0.6, 0.5)


def _zeros(side: int) -> ndarray:
    return np.zeros((side, side), np.float32)


BACKGROUNDS: dict[str, Callable[[HistologyPatient, np.random.Generator, int, float], BackgroundTissue]] = {
    "cortex": cortex,
    "centre": germinal_centre,
    "sinus": sinus,
    "capsule": capsule,
    "fat": fat,
    "blank": blank,
}
