"""A thin section of a lymph node: where tumour grows in it, which cells lie where, how much stain each place takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from medfed.phantoms.synthesis import histology_background as backgrounds
from medfed.phantoms.synthesis.histology_background import BackgroundTissue
from medfed.phantoms.synthesis.histology_cells import NucleusType, draw_nuclei, jittered_lattice
from medfed.phantoms.synthesis.histology_fields import centred_grid, fibre_texture, smooth_field, soft_mask
from medfed.phantoms.synthesis.histology_patient import Patient

FIBROBLAST = NucleusType(radius_um=2.7, spread=0.15, longer=(3.0, 6.0), ragged=0.05, chromatin=1.0, rim=0.1)
NORMAL = {"cortex": 0.42, "centre": 0.22, "sinus": 0.11, "capsule": 0.15, "fat": 0.06, "blank": 0.04}
BESIDE_TUMOUR = {"cortex": 0.52, "sinus": 0.14, "capsule": 0.18, "fat": 0.16}
_FAR_UM = 1e3


@dataclass(frozen=True)
class Section:
    """stain: (side, side, 3) float32: haematoxylin, eosin, blood. tumour: (side, side) bool, as one would ring it."""

    stain: ndarray
    tumour: ndarray


def make_section(patient: Patient, label: int, rng: np.random.Generator, side: int, um: float) -> Section:
    """A section with tumour in its middle third (label 1), or without (0), though it may still come near.

    Args:
        side, um: pixels of the section, and micrometres of one.
    """
    field = _growth(label, rng, side, um)
    names = NORMAL if label == 0 and field.max() <= 0 else BESIDE_TUMOUR
    background = backgrounds.make_background(
        str(rng.choice(list(names), p=list(names.values()))), patient, rng, side, um
    )
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
    return Section(stain * _thickness(patient, rng, side, um)[..., None], field > 0)


def _growth(label: int, rng: np.random.Generator, side: int, um: float) -> ndarray:
    """Micrometres inside the tumour's edge: above 0 is tumour. The middle third has some where the label is 1."""
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
    patient: Patient,
    background: BackgroundTissue,
    tumour: ndarray,
    nest: ndarray,
    angle: float,
    rng: np.random.Generator,
    side: int,
    um: float,
) -> ndarray:
    """(side, side) haematoxylin of all nuclei."""
    canvas, side_um, bare = np.zeros((side, side), np.float32), side * um, 1 - tumour
    stroma = tumour * (1 - nest)
    busy = stroma * soft_mask(smooth_field(rng, side, 22 / um) + _threshold(patient.infiltration), 0.4)
    lymphocyte = NucleusType(patient.lymphocyte_um, 0.08, (1.0, 1.25), 0.08, 1.45, 0.15)
    cell = NucleusType(patient.nucleus_um, patient.pleomorphism, (1.0, 1.7), 0.10 + 0.5 * patient.pleomorphism,
                patient.chromatin * math.exp(rng.normal(0, 0.12)), 0.35, patient.nucleoli)
    large_way = 2.25 * background.large_kind.radius_um
    crowds = [
        (lymphocyte, patient.lymphocyte_way_um, background.lymphocytes * bare + 0.75 * busy + 0.02 * nest, None),
        (background.large_kind, large_way, background.large * bare, None),
        (FIBROBLAST, 11.0, 0.55 * background.spindle * bare, background.angle),
        (FIBROBLAST, 11.0, 0.55 * (stroma - busy), angle),
        (cell, patient.cell_way_um, 1.15 * nest - 0.15, None),
    ]
    for kind, way_um, density, along in crowds:
        if density.max() > 0.01:
            places = jittered_lattice(rng, side_um, way_um)
            row, column = np.clip(places / um, 0, side - 1).astype(int).T
            draw_nuclei(canvas, places[rng.random(len(places)) < density[row, column]], kind, um, rng, along)
    return canvas


def _tumour_stain(patient: Patient, eosin: ndarray, haematoxylin: ndarray, tumour: ndarray, nest: ndarray, angle: float,
                  rng: np.random.Generator, um: float) -> tuple[ndarray, ndarray]:
    """Eosin and haematoxylin with cytoplasm and stroma; clefts around nests and the lumina of glands are empty."""
    side = len(eosin)
    strength = patient.cytoplasm * math.exp(rng.normal(0, 0.30))
    grains = 0.32 * smooth_field(rng, side, 2.2 / um) + 0.20 * smooth_field(rng, side, 9 / um)
    cytoplasm = strength * np.clip(1 + grains, 0, 2)
    stroma = patient.collagen * fibre_texture(rng, side, rng.uniform(4, 7) / um, angle)
    eosin = eosin + nest * cytoplasm + (tumour - nest) * stroma
    torn = soft_mask(smooth_field(rng, side, 14 / um) - rng.uniform(-0.3, 1.0), 0.5)
    cleft = tumour * torn * np.clip(1 - np.abs(nest - 0.35) / 0.3, 0, 1)
    lumen = nest * soft_mask(smooth_field(rng, side, 8 / um) - 3.2 + 3.2 * patient.glands, 0.4)
    kept = 1 - np.maximum(cleft, lumen)
    return eosin * kept, np.maximum(haematoxylin, 0.15 * nest * strength) * kept


def _thickness(patient: Patient, rng: np.random.Generator, side: int, um: float) -> ndarray:
    """(side, side): of the section against the usual; slow waves, and rarely a fold, which is two layers."""
    thickness = patient.thickness * math.exp(rng.normal(0, 0.14)) * (1 + 0.05 * smooth_field(rng, side, 40 / um))
    if rng.random() < 0.04:
        angle, (rows, columns) = rng.uniform(0, np.pi), centred_grid(side)
        line = (columns * np.float32(np.cos(angle)) + rows * np.float32(np.sin(angle))) * np.float32(um)
        wave = line + np.float32(rng.uniform(-35, 35)) + 4 * smooth_field(rng, side, 25 / um)
        thickness = thickness * (1 + 0.9 * soft_mask(rng.uniform(4, 9) - np.abs(wave), 4))
    return np.maximum(thickness, 0.2).astype(np.float32)


def _threshold(share: float) -> float:
    """What to add to a smooth field so that about this share of it is above 0: the logistic stands for the normal."""
    share = min(max(share, 1e-3), 1 - 1e-3)
    return math.log(share / (1 - share)) / 1.702
