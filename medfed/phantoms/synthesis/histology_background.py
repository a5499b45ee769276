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
    """Maps that describe the tissue outside the tumour: where its cells are and how strongly it is stained.

    All maps are (side, side) float32 from 0 to about 1. In a map of cell density, 0 means no cells, and 1 means the
    densest packing of this type of cells.

    Args:
        lymphocytes: map of the density of lymphocytes.
        eosin: map of the amount of eosin outside the nuclei. An amount of 1 gives the optical densities -ln(I / I_0) of
            red, green and blue, a vector of Euclidean norm 1.
        blood: map of red blood cells, 0 for none and 1 inside a vessel.
        spindle: map of the density of fibroblasts.
        angle: direction of the fibroblasts in radians, a single number.
        large: map of the density of large round cells.
        large_kind: appearance of the nuclei of the large round cells.
    """

    lymphocytes: ndarray
    eosin: ndarray
    blood: ndarray
    spindle: ndarray
    angle: float
    large: ndarray
    large_kind: NucleusType = HISTIOCYTE


def make_background(
    name: str, patient: HistologyPatient, rng: np.random.Generator, side: int, um: float
) -> BackgroundTissue:
    """Draw a random piece of normal lymph node tissue of one type, as maps of cell density and stain.

    Args:
        name: "cortex", "centre" (germinal centre), "sinus", "capsule", "fat" or "blank" (empty glass).
        patient: parameters of the patient.
        rng: NumPy random generator for the structure of the tissue.
        side: height and width in pixels.
        um: pixel size in micrometres.

    Returns:
        Five maps (side, side), each from 0 to about 1: the density of lymphocytes, of fibroblasts and of large round
        cells, the amount of eosin, and the amount of red blood cells.
    """
    return BACKGROUNDS[name](patient, rng, side, um)


def cortex(patient: HistologyPatient, rng: np.random.Generator, side: int, um: float) -> BackgroundTissue:
    """Draw random cortex of a lymph node: densely packed lymphocytes, a few large cells, and a fine mesh of fibres.

    Args:
        patient: parameters of the patient (not used).
        rng: NumPy random generator for the structure of the tissue.
        side: height and width in pixels.
        um: pixel size in micrometres.

    Returns:
        Five maps (side, side), each from 0 to about 1: the density of lymphocytes, of fibroblasts and of large round
        cells, the amount of eosin, and the amount of red blood cells.
    """
    dense = rng.uniform(0.6, 1.1) + rng.uniform(0, 0.25) * smooth_field(rng, side, 16 / um)
    few_large_cells = np.full((side, side), rng.uniform(0, 0.30), np.float32)
    return BackgroundTissue(dense, _mesh(rng, side, um), _zeros(side), _zeros(side), 0.0, few_large_cells)


def germinal_centre(patient: HistologyPatient, rng: np.random.Generator, side: int, um: float) -> BackgroundTissue:
    """Draw the edge of a random germinal centre, with large pale cells inside and densely packed lymphocytes outside.

    Args:
        patient: parameters of the patient (not used).
        rng: NumPy random generator for the structure of the tissue.
        side: height and width in pixels.
        um: pixel size in micrometres.

    Returns:
        Five maps (side, side), each from 0 to about 1: the density of lymphocytes, of fibroblasts and of large round
        cells, the amount of eosin, and the amount of red blood cells.
    """
    start = cortex(patient, rng, side, um)
    inside = soft_mask(_edge(rng, side, um, rng.uniform(-10, 45)), 12)
    eosin = start.eosin * (1 - inside) + inside * (rng.uniform(0.35, 0.75) + 0.08 * smooth_field(rng, side, 3 / um))
    return BackgroundTissue(
        start.lymphocytes * (1 - 0.8 * inside), eosin, _zeros(side), _zeros(side), 0.0, inside, CENTROBLAST
    )


def sinus(patient: HistologyPatient, rng: np.random.Generator, side: int, um: float) -> BackgroundTissue:
    """Draw a random sinus of a lymph node: a pale channel with fluid and histiocytes that runs through the cortex.

    Args:
        patient: parameters of the patient (not used).
        rng: NumPy random generator for the structure of the tissue.
        side: height and width in pixels.
        um: pixel size in micrometres.

    Returns:
        Five maps (side, side), each from 0 to about 1: the density of lymphocytes, of fibroblasts and of large round
        cells, the amount of eosin, and the amount of red blood cells.
    """
    start = cortex(patient, rng, side, um)
    width = rng.uniform(0.4, 1.1)
    channel = soft_mask(width - np.abs(smooth_field(rng, side, 34 / um)), 0.15)
    eosin = start.eosin * (1 - channel) + channel * np.clip(0.12 + 0.16 * smooth_field(rng, side, 4 / um), 0, 0.5)
    large = np.maximum(start.large * (1 - channel), channel * rng.uniform(0.5, 1.0))
    return BackgroundTissue(start.lymphocytes * (1 - 0.85 * channel), eosin, _zeros(side), _zeros(side), 0.0, large)


def capsule(patient: HistologyPatient, rng: np.random.Generator, side: int, um: float) -> BackgroundTissue:
    """Draw a random piece of a lymph node's capsule: collagen bundles with fibroblasts and clefts.

    The capsule borders on cortex. In about a third of the draws there is also empty glass outside the tissue.

    Args:
        patient: parameters of the patient. Only `collagen`, the amount of eosin in collagen fibres, is used.
        rng: NumPy random generator for the structure of the tissue.
        side: height and width in pixels.
        um: pixel size in micrometres.

    Returns:
        Five maps (side, side), each from 0 to about 1: the density of lymphocytes, of fibroblasts and of large round
        cells, the amount of eosin, and the amount of red blood cells.
    """
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
    """Draw random fat tissue: round empty fat cells with thin walls. The fat borders on cortex of the lymph node.

    Args:
        patient: parameters of the patient (not used).
        rng: NumPy random generator for the structure of the tissue.
        side: height and width in pixels.
        um: pixel size in micrometres.

    Returns:
        Five maps (side, side), each from 0 to about 1: the density of lymphocytes, of fibroblasts and of large round
        cells, the amount of eosin, and the amount of red blood cells.
    """
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
    """Draw empty glass with a few random specks.

    Args:
        patient: parameters of the patient (not used).
        rng: NumPy random generator for the specks.
        side: height and width in pixels.
        um: pixel size in micrometres.

    Returns:
        Five maps (side, side): the density of lymphocytes, of fibroblasts and of large round cells, the amount of
        eosin, and the amount of red blood cells. All maps are 0, except that the amount of eosin is up to 0.4 in the
        specks.
    """
    specks = 0.4 * soft_mask(smooth_field(rng, side, 3 / um) - rng.uniform(2.6, 4.0), 0.8)
    return BackgroundTissue(_zeros(side), specks.astype(np.float32), _zeros(side), _zeros(side), 0.0, _zeros(side))


def _mesh(rng: np.random.Generator, side: int, um: float) -> ndarray:
    """Sample the eosin of cytoplasm and fibres between lymphocytes, (side, side)."""
    return np.clip(rng.uniform(0.22, 0.85) + 0.24 * smooth_field(rng, side, 3.2 / um), 0.02, 1.2)


def _edge(rng: np.random.Generator, side: int, um: float, offset_um: float) -> ndarray:
    """Sample a wavy edge of random direction that passes the centre at a distance of `offset_um`.

    Returns the signed distance to the edge in micrometres, (side, side), positive inside.
    """
    angle, (rows, columns) = rng.uniform(0, 2 * np.pi), centred_grid(side)
    line = (columns * np.float32(np.cos(angle)) + rows * np.float32(np.sin(angle))) * np.float32(um)
    return line + np.float32(offset_um) + 7 * smooth_field(rng, side, 20 / um)


def _vessel(rng: np.random.Generator, side: int, um: float) -> ndarray:
    """Sample a round vessel filled with red blood cells, (side, side) in [0, 1]."""
    (rows, columns), (y, x) = centred_grid(side), rng.uniform(-0.35, 0.35, 2) * side
    inside = soft_mask(rng.uniform(9, 20) - np.hypot(rows - y, columns - x).astype(np.float32) * um, 3)
    return inside * soft_mask(smooth_field(rng, side, 3.2 / um) + 0.6, 0.5)


def _zeros(side: int) -> ndarray:
    """Return a float32 image of zeros."""
    return np.zeros((side, side), np.float32)


BACKGROUNDS: dict[str, Callable[[HistologyPatient, np.random.Generator, int, float], BackgroundTissue]] = {
    "cortex": cortex,
    "centre": germinal_centre,
    "sinus": sinus,
    "capsule": capsule,
    "fat": fat,
    "blank": blank,
}
