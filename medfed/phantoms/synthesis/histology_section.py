"""Synthetic section of a lymph node: tumour region, positions of the cells, and amount of stain at every pixel.

In all functions `side` is the height and width of the section in pixels, and `um` is the pixel size in micrometres.
"""

from __future__ import annotations

import math

import numpy as np
from numpy import ndarray

from medfed.phantoms.synthesis.histology_background import BACKGROUNDS, BackgroundTissue
from medfed.phantoms.synthesis.histology_cells import NucleusType, draw_nuclei, jittered_lattice
from medfed.phantoms.synthesis.histology_fields import centred_grid, fibre_texture, smooth_field, soft_mask
from medfed.phantoms.synthesis.histology_patient import HistologyPatient

FIBROBLAST = NucleusType(radius_um=2.7, spread=0.15, elongation=(3.0, 6.0), irregularity=0.05, chromatin=1.0, rim=0.1)
NORMAL = {"cortex": 0.42, "centre": 0.22, "sinus": 0.11, "capsule": 0.15, "fat": 0.06, "blank": 0.04}
BESIDE_TUMOUR = {"cortex": 0.52, "sinus": 0.14, "capsule": 0.18, "fat": 0.16}
_FAR_UM = 1e3


def make_section(
    patient: HistologyPatient, label: int, rng: np.random.Generator, side: int, um: float
) -> tuple[ndarray, ndarray]:
    """Draw a section with tumour in its middle third if and only if `label` is 1; it may always grow at the edge.

    Returns the stain (side, side, 3), haematoxylin, eosin and blood, and the tumour (side, side).
    """
    field = _growth(label, rng, side, um)
    names = NORMAL if label == 0 and field.max() <= 0 else BESIDE_TUMOUR
    name = str(rng.choice(list(names), p=list(names.values())))
    background = BACKGROUNDS[name](patient, rng, side, um)
    tumour = soft_mask(field, 3)
    nest = tumour * soft_mask(smooth_field(rng, side, 15 / um) + _threshold(patient.nests), 0.25)
    angle = rng.uniform(0, np.pi)
    haematoxylin = _nuclei(patient, background, tumour, nest, angle, rng, side, um)
    eosin = background.eosin * (1 - tumour)
    if field.max() > 0:
        eosin, haematoxylin = _tumour_stain(patient, eosin, haematoxylin, tumour, nest, angle, rng, um)
    eosin = eosin * (1 - 0.55 * np.minimum(haematoxylin, 1))
    haematoxylin = haematoxylin * np.clip(1 + 0.16 * smooth_field(rng, side, 1.3 / um), 0.4, 1.6)
    stain = np.stack([haematoxylin + 0.06 * eosin, eosin, 1.3 * background.blood * (1 - tumour)], axis=-1)
    return stain * _thickness(patient, rng, side, um)[..., None], field > 0


def _growth(label: int, rng: np.random.Generator, side: int, um: float) -> ndarray:
    """Signed distance to the tumour's edge in micrometres, (side, side), positive inside the tumour."""
    kind = rng.random()
    rows, columns = centred_grid(side)
    if label == 0 and kind > 0.22:
        return np.full((side, side), -_FAR_UM, np.float32)
    if label == 1 and kind < 0.5:
        return np.full((side, side), _FAR_UM, np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    line = (columns * np.float32(np.cos(angle)) + rows * np.float32(np.sin(angle))) * np.float32(um)
    field = line + 6 * smooth_field(rng, side, 18 / um) + np.float32(rng.uniform(-12, 35))
    if label == 1 and kind > 0.82:
        field = 14 * smooth_field(rng, side, 20 / um) - np.float32(rng.uniform(0, 8))
    highest = float(field[side // 3 : side - side // 3, side // 3 : side - side // 3].max())
    if label == 0:
        return field - np.float32(max(0.0, highest + 2))
    return field + np.float32(max(0.0, 7 - highest))


def _nuclei(
    patient: HistologyPatient,
    background: BackgroundTissue,
    tumour: ndarray,
    nest: ndarray,
    angle: float,
    rng: np.random.Generator,
    side: int,
    um: float,
) -> ndarray:
    """Haematoxylin of all nuclei, (side, side)."""
    haematoxylin, side_um, no_tumour = np.zeros((side, side), np.float32), side * um, 1 - tumour
    stroma = tumour * (1 - nest)
    infiltrated = stroma * soft_mask(smooth_field(rng, side, 22 / um) + _threshold(patient.infiltration), 0.4)
    lymphocyte = NucleusType(patient.lymphocyte_um, 0.08, (1.0, 1.25), 0.08, 1.45, 0.15)
    cell = NucleusType(
        patient.nucleus_um,
        patient.pleomorphism,
        (1.0, 1.7),
        0.10 + 0.5 * patient.pleomorphism,
        patient.chromatin * math.exp(rng.normal(0, 0.12)),
        0.35,
        patient.nucleoli,
    )
    large_spacing_um = 2.25 * background.large_kind.radius_um
    populations = [
        (
            lymphocyte,
            patient.lymphocyte_spacing_um,
            background.lymphocytes * no_tumour + 0.75 * infiltrated + 0.02 * nest,
            None,
        ),
        (background.large_kind, large_spacing_um, background.large * no_tumour, None),
        (FIBROBLAST, 11.0, 0.55 * background.spindle * no_tumour, background.angle),
        (FIBROBLAST, 11.0, 0.55 * (stroma - infiltrated), angle),
        (cell, patient.cell_spacing_um, 1.15 * nest - 0.15, None),
    ]
    for kind, spacing_um, density, along in populations:
        if density.max() > 0.01:
            places = jittered_lattice(rng, side_um, spacing_um)
            row, column = np.clip(places / um, 0, side - 1).astype(int).T
            draw_nuclei(haematoxylin, places[rng.random(len(places)) < density[row, column]], kind, um, rng, along)
    return haematoxylin


def _tumour_stain(
    patient: HistologyPatient,
    eosin: ndarray,
    haematoxylin: ndarray,
    tumour: ndarray,
    nest: ndarray,
    angle: float,
    rng: np.random.Generator,
    um: float,
) -> tuple[ndarray, ndarray]:
    """Return eosin and haematoxylin with the tumour's cytoplasm and stroma; clefts and lumina are empty."""
    side = len(eosin)
    strength = patient.cytoplasm * math.exp(rng.normal(0, 0.30))
    grains = 0.32 * smooth_field(rng, side, 2.2 / um) + 0.20 * smooth_field(rng, side, 9 / um)
    cytoplasm = strength * np.clip(1 + grains, 0, 2)
    stroma = patient.collagen * fibre_texture(rng, side, rng.uniform(4, 7) / um, angle)
    eosin = eosin + nest * cytoplasm + (tumour - nest) * stroma
    torn = soft_mask(smooth_field(rng, side, 14 / um) - rng.uniform(-0.3, 1.0), 0.5)
    cleft = tumour * torn * np.clip(1 - np.abs(nest - 0.35) / 0.3, 0, 1)
    lumen = nest * soft_mask(smooth_field(rng, side, 8 / um) - 3.2 + 3.2 * patient.glands, 0.4)
    remaining = 1 - np.maximum(cleft, lumen)
    return eosin * remaining, np.maximum(haematoxylin, 0.15 * nest * strength) * remaining


def _thickness(patient: HistologyPatient, rng: np.random.Generator, side: int, um: float) -> ndarray:
    """Relative thickness, (side, side): smooth waves, and rarely a fold of two layers."""
    thickness = patient.thickness * math.exp(rng.normal(0, 0.14)) * (1 + 0.05 * smooth_field(rng, side, 40 / um))
    if rng.random() < 0.04:
        angle, (rows, columns) = rng.uniform(0, np.pi), centred_grid(side)
        line = (columns * np.float32(np.cos(angle)) + rows * np.float32(np.sin(angle))) * np.float32(um)
        wave = line + np.float32(rng.uniform(-35, 35)) + 4 * smooth_field(rng, side, 25 / um)
        thickness = thickness * (1 + 0.9 * soft_mask(rng.uniform(4, 9) - np.abs(wave), 4))
    return np.maximum(thickness, 0.2).astype(np.float32)


def _threshold(share: float) -> float:
    """Number to add to a standard normal field so that about the fraction `share` of it is positive."""
    share = min(max(share, 1e-3), 1 - 1e-3)
    return math.log(share / (1 - share)) / 1.702
