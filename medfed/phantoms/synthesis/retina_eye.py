"""Random parameters of one synthetic eye, which any simulated camera can photograph at any resolution.

Positions are in mm on the retina from the centre of the optic disc. x points to the temple in every eye (the image of a
left eye is mirrored when it is photographed), y points downwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medfed.phantoms.synthesis.retina_vessels import Vessel, sample_vessels


@dataclass(frozen=True)
class Eye:
    left: bool
    disc_mm: tuple[float, float]  # half the width and half the height of the optic disc
    tilt_degrees: float  # rotation of the disc's long axis
    wobble: tuple[tuple[float, ...], ...]  # outline: amplitudes of cos and sin of 2, 3 and 4 times the angle
    cup_ratio: float  # vertical cup-to-disc ratio
    cup_width: float  # horizontal cup-to-disc ratio divided by `cup_ratio`
    cup_offset: tuple[float, float]  # (x, y) of the cup, as a fraction (-1 to 1) of half the free space inside the disc
    cup_edge_mm: float  # width of the transition from rim to cup floor
    cup_pallor: float  # how pale the floor of the cup is, 0 to 1
    rim_edge_mm: tuple[float, float]  # width of the disc's soft edge, on the temporal and on the nasal side
    pallor: float  # colour of the rim, from 0 (pink) to 1 (pale)
    melanin: float  # pigmentation of the background, from 0 (fair) to 1 (dark)
    tessellation: float  # visibility of the choroidal vessels, 0 to 1
    crescent_mm: float  # width of the atrophy next to the disc; 0 for none
    crescent_degrees: float  # direction of the atrophy; 0 is temporal
    fibres: float  # brightness of the nerve fibre layer, 0 to 1
    lens: float  # yellowing and clouding of the lens, 0 to 1
    spots: tuple[tuple[float, float, float, float], ...]  # (x, y, radius, brightness) of bright spots such as drusen
    vessels: tuple[Vessel, ...]
    texture_seed: int

    @classmethod
    def sample(cls, rng: np.random.Generator, melanin_shift: float = 0.0) -> Eye:
        """Draw an eye; `melanin_shift`, which describes a site's population, is added to the mean pigmentation 0.5."""
        height = float(np.clip(rng.normal(0.92, 0.08), 0.74, 1.12))
        disc_mm = (height * float(np.clip(rng.normal(0.92, 0.05), 0.8, 1.05)), height)
        cup_ratio = float(np.clip(0.2 + 0.65 * rng.beta(1.8, 1.7), 0.2, 0.85))
        cup_offset = (float(rng.uniform(-0.2, 0.55)), float(rng.uniform(-0.45, 0.45)))
        has_crescent, has_spots = rng.random() < 0.4, rng.random() < 0.25
        return cls(
            left=bool(rng.random() < 0.5),
            disc_mm=disc_mm,
            tilt_degrees=float(rng.normal(0, 9)),
            wobble=tuple(tuple(row) for row in (rng.normal(0, 1, (2, 3)) * (0.012, 0.010, 0.006)).tolist()),
            cup_ratio=cup_ratio,
            cup_width=float(rng.uniform(0.88, 1.08)),
            cup_offset=cup_offset,
            cup_edge_mm=float(rng.uniform(0.10, 0.34)),
            cup_pallor=float(rng.uniform(0.35, 1.0)),
            rim_edge_mm=(float(rng.uniform(0.04, 0.10)), float(rng.uniform(0.07, 0.20))),
            pallor=float(np.clip(0.25 + 0.5 * (cup_ratio - 0.5) + rng.normal(0, 0.18), 0, 1)),
            melanin=float(np.clip(rng.normal(0.5 + melanin_shift, 0.2), 0, 1)),
            tessellation=float(rng.beta(1.3, 2.2)),
            crescent_mm=float(rng.uniform(0.12, 0.42)) if has_crescent else 0.0,
            crescent_degrees=float(rng.normal(10, 25)),
            fibres=float(rng.beta(1.3, 2.0)),
            lens=float(rng.beta(1.2, 3.5)),
            spots=_spots(rng) if has_spots else (),
            vessels=sample_vessels(rng, disc_mm),
            texture_seed=int(rng.integers(2**31)),
        )


def _spots(rng: np.random.Generator) -> tuple[tuple[float, float, float, float], ...]:
    """Sample 3 to 13 bright spots in one loose cluster outside the disc, as (x, y, radius, brightness)."""
    angle, away = rng.uniform(0, 2 * np.pi), rng.uniform(1.4, 2.0)
    middle = away * np.cos(angle), away * np.sin(angle)
    return tuple(
        (middle[0] + rng.normal(0, 0.3), middle[1] + rng.normal(0, 0.3), rng.uniform(0.02, 0.06), rng.uniform(0.3, 1))
        for _ in range(rng.integers(3, 14))
    )
