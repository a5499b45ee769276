"""Generator of the histology phantom: synthetic lymph node patches in the file layout of Camelyon17-WILDS.

The images contain no patient data. Scores on them show whether the code works, not how a method performs in a hospital.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy import ndarray
from PIL import Image

from medfed.datasets.base import Progress
from medfed.phantoms.synthesis.common import stream
from medfed.phantoms.synthesis.histology_microscope import scan_slide, stain_vectors, transmittance
from medfed.phantoms.synthesis.histology_patient import HistologyPatient
from medfed.phantoms.synthesis.histology_section import make_section
from medfed.phantoms.synthesis.histology_sites import SITES

VERSION = 1
SIDE = 96  # height and width of a patch in pixels
FINER = 2  # the section is generated with this many times the resolution of the patch
HEADER = ("", "patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split")
_PATIENTS_PUBLISHED = 20  # the challenge numbers the patients of a hospital 000-019, 020-039, ...
_VALIDATION_SHARE = 0.1  # fraction of the patches in the published validation split


@dataclass(frozen=True)
class PatchRow:
    """One row of `metadata.csv`, the table of all patches."""

    patient: int  # 0 to 99; each site has 20 consecutive numbers
    number: int  # of the patch among the patient's, from 0; not in the file
    node: int  # number of the lymph node, 0 to 4
    x: int  # column in the slide, in pixels
    y: int  # row in the slide, in pixels
    tumour: int  # 1 if the middle of the patch shows tumour, else 0
    slide: int
    centre: int  # number of the hospital, 0 to 4
    split: int  # 1 for the published validation split, else 0

    @property
    def file(self) -> Path:
        """Path relative to `patches`, as `patient_004_node_1/patch_patient_004_node_1_x_3328_y_7712.png`."""
        slide = f"patient_{self.patient:03d}_node_{self.node}"
        return Path(slide) / f"patch_{slide}_x_{self.x}_y_{self.y}.png"


def patch_table(patches_per_site: int, patients_per_site: int, seed: int) -> Iterator[PatchRow]:
    """Yield the row of every patch, slide by slide; every second patch of a slide shows tumour."""
    for centre in range(len(SITES)):
        for k in range(patients_per_site):
            patient, slide = centre * _PATIENTS_PUBLISHED + k, centre * patients_per_site + k
            rng = stream(seed, "histology slide", patient)
            node, corner = int(rng.integers(5)), 32 * rng.integers(20, 500, 2)
            for index in range(k, patches_per_site, patients_per_site):
                n = index // patients_per_site
                split = int(stream(seed, "histology split", patient, n).random() < _VALIDATION_SHARE)
                x, y = (int(start) + SIDE * step for start, step in zip(corner, (n % 32, n // 32)))
                yield PatchRow(patient, n, node, x, y, n % 2, slide, centre, split)


def simulate_patch(patient: int, number: int, label: int, seed: int = 0) -> tuple[ndarray, ndarray]:
    """Return a patch, (96, 96, 3) uint8, and the mask of the tumour, which `label` 1 puts in the middle 32 x 32."""
    site = SITES[f"hospital_{patient // _PATIENTS_PUBLISHED + 1}"]
    parameters = _patient_parameters(seed, patient, site.stain_spread)
    stain, tumour = make_section(
        parameters, label, stream(seed, "histology section", patient, number), SIDE * FINER, site.um_per_pixel / FINER
    )
    strength = np.array([site.haematoxylin * parameters.haematoxylin, site.eosin * parameters.eosin, 1], np.float32)
    light = transmittance(stain * strength, stain_vectors(site))
    image = scan_slide(_pixels(light).mean(axis=0), site, stream(seed, "histology camera", patient, number))
    return image, np.asarray(_pixels(tumour).any(axis=0))


def write_patches(folder: Path, patches_per_site: int, patients_per_site: int, seed: int, progress: Progress) -> None:
    """Write the patches of all sites and `metadata.csv` to a folder, with the settings of `Camelyon17Phantom`."""
    table = list(patch_table(patches_per_site, patients_per_site, seed))
    with open(folder / "metadata.csv", "w", newline="", encoding="utf-8") as csv_file:
        writer = csv.writer(csv_file, lineterminator="\n")
        writer.writerow(HEADER)
        for index, row in enumerate(table):
            place = (index, f"{row.patient:03d}", row.node, row.x, row.y)
            writer.writerow((*place, row.tumour, row.slide, row.centre, row.split))
    for row in progress(table):
        image, _ = simulate_patch(row.patient, row.number, row.tumour, seed)
        file = folder / "patches" / row.file
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).convert("RGBA").save(file, compress_level=3)  # RGBA, as published


def _pixels(fine: ndarray) -> ndarray:
    """Group the fine pixels of a section by patch pixel: (192, 192, ...) to (FINER * FINER, 96, 96, ...)."""
    return np.stack([fine[row::FINER, column::FINER] for row in range(FINER) for column in range(FINER)])


@lru_cache(maxsize=128)
def _patient_parameters(seed: int, patient: int, stain_spread: float) -> HistologyPatient:
    """Cached, because the parameters are the same for all patches of the patient."""
    return HistologyPatient.sample(stream(seed, "histology patient", patient), stain_spread)
