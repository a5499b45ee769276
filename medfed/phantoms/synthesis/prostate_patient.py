"""Random parameters of one synthetic patient, who can be imaged at any resolution and on any simulated scanner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from medfed.phantoms.synthesis.pelvis_anatomy import SIDES, Body

SHAPE_FACTOR = 0.55  # volume of the gland divided by width x thickness x length


@dataclass(frozen=True)
class FocalStructure:
    """An ellipsoid inside the gland, a nodule or a lesion: (x, y, z) centre and semi-axes in mm."""

    tissue: str
    centre: tuple[float, float, float]
    radii: tuple[float, float, float]


@dataclass(frozen=True)
class Patient:
    gland_mm: tuple[float, float, float]  # width, thickness (front to back) and length of the gland
    widest: float  # position of the widest slice, from -1 (apex) to 1 (base)
    dent_mm: float  # depth of the groove that the rectum presses into the gland
    lobes: tuple[float, float]  # size of the right and left transition lobe relative to half the width
    brightness: dict[str, float]  # factor applied to the T2 of a tissue, by tissue name
    blobs: tuple[FocalStructure, ...]  # nodules and lesions
    bladder_mm: tuple[float, float, float]  # semi-axes of the bladder along x, y and z
    rectum_mm: float  # radius of the rectum
    content: str  # content of the rectum: "air", "stool" or "mucosa" (empty)
    balloon: bool  # whether the balloon of an endorectal coil is in place
    body: Body  # pelvis around the prostate
    texture_seed: int  # seed of the random textures and deformations

    @classmethod
    def sample(cls, rng: np.random.Generator, balloon: bool = False) -> Patient:
        """Draw a patient with a prostate of 23 to 80 ml (median 42 ml); a balloon compresses it."""
        volume_ml = float(np.clip(42 * np.exp(rng.normal(0, 0.36)), 23, 80))
        shape = np.array([1.28, 0.84, 0.98]) * np.exp(rng.normal(0, 0.05, 3))
        shape *= np.array([1.08, 0.88, 1.03]) if balloon else 1.0
        gland = shape * (volume_ml * 1000 / SHAPE_FACTOR / shape.prod()) ** (1 / 3)
        big = np.clip((volume_ml - 20) / 60, 0, 1)  # a benign enlargement is an enlargement of the transition zone
        lobes = np.clip(0.64 + 0.20 * big + rng.normal(0, 0.04, 2), 0.52, 0.88)
        rectum_mm = rng.uniform(17, 20.5) if balloon else rng.uniform(9.5, 16.5)
        body = Body.sample(rng, tuple(gland), rectum_mm)
        return cls(
            gland_mm=(float(gland[0]), float(gland[1]), float(gland[2])),
            widest=rng.uniform(0.0, 0.3),
            dent_mm=rng.uniform(1.0, 3.5) + 2.0 * balloon,
            lobes=(float(lobes[0]), float(lobes[1])),
            brightness=_brightness(rng),
            blobs=tuple(_blobs(rng, gland, lobes, big)),
            bladder_mm=(rng.uniform(22, 42), rng.uniform(16, 30), rng.uniform(18, 30)),
            rectum_mm=rectum_mm,
            content="air" if balloon else str(rng.choice(["air", "stool", "mucosa"], p=[0.35, 0.4, 0.25])),
            balloon=balloon,
            body=body,
            texture_seed=int(rng.integers(2**31)),
        )


def _brightness(rng: np.random.Generator) -> dict[str, float]:
    """Sample factors for the T2 of tissues, which differs between patients, e.g. in an inflamed peripheral zone."""
    spread = {
        "peripheral": 0.16,
        "transition": 0.10,
        "central": 0.08,
        "seminal_lumen": 0.15,
        "marrow": 0.10,
        "muscle": 0.05,
    }
    return {tissue: float(np.exp(rng.normal(0, sd))) for tissue, sd in spread.items()}


def _blobs(rng: np.random.Generator, gland: ndarray, lobes: ndarray, big: float) -> Iterator[FocalStructure]:
    """Yield benign nodules in both transition lobes and, in 40 % of the patients, a lesion in the peripheral zone."""
    width, thick, length = gland / 2
    for _ in range(rng.integers(4, 8) + int(8 * big)):
        side = rng.integers(2)
        radius = rng.uniform(2.2, 4.5 + 4.0 * big)
        x = SIDES[side] * rng.uniform(0.12, 0.8) * width * lobes[side]
        centre = (x, rng.uniform(-0.55, 0.3) * thick, rng.uniform(-0.35, 0.75) * length)
        tissue = "nodule_bright" if rng.random() < 0.5 else "nodule_dark"
        yield FocalStructure(tissue, centre, tuple(radius * rng.uniform(0.75, 1.2, 3)))
    if rng.random() < 0.4:
        angle = np.radians(rng.uniform(15, 75)) * rng.choice(SIDES)
        centre = (0.82 * width * np.sin(angle), 0.78 * thick * np.cos(angle), rng.uniform(-0.6, 0.5) * length)
        yield FocalStructure("lesion", centre, tuple(rng.uniform(3.0, 7.0) * rng.uniform(0.7, 1.2, 3)))
