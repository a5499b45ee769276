"""The synthetic twin of Camelyon17-WILDS: patches of lymph nodes of five hospitals, in the published layout.

Nothing in it comes from a patient. Scores on it say whether the code works, never how a method does in a hospital.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy import ndarray
from PIL import Image

from medfed.phantoms.synthesis.collection import atomic_collection, stream
from medfed.phantoms.synthesis.histology_microscope import scan_slide, stain_vectors, transmittance
from medfed.phantoms.synthesis.histology_patient import Patient
from medfed.phantoms.synthesis.histology_section import make_section
from medfed.phantoms.synthesis.histology_sites import SITES

VERSION = 1
SIDE = 96      # of a patch, in pixels
MIDDLE = slice(32, 64)
FINER = 2      # the section is drawn with so many pixels a pixel
HEADER = ("", "patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split")
_PATIENTS_PUBLISHED = 20  # numbers a hospital has in the challenge: 000-019, 020-039, ...
_VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class PatchRow:
    """One line of metadata.csv, but for its index."""

    patient: int
    node: int
    x: int
    y: int
    tumour: int
    slide: int
    centre: int
    split: int

    @property
    def file(self) -> Path:
        """Below `patches`."""
        slide = f"patient_{self.patient:03d}_node_{self.node}"
        return Path(slide) / f"patch_{slide}_x_{self.x}_y_{self.y}.png"


def patch_table(patches_per_site: int, patients_per_site: int, seed: int) -> Iterator[PatchRow]:
    """What the collection holds, slide by slide. Every other patch of a slide has tumour."""
    for centre in range(len(SITES)):
        for k in range(patients_per_site):
            patient, slide = centre * _PATIENTS_PUBLISHED + k, centre * patients_per_site + k
            rng = stream(seed, "histology slide", patient)
            node, corner = int(rng.integers(5)), 32 * rng.integers(20, 500, 2)
            for index in range(k, patches_per_site, patients_per_site):
                n = index // patients_per_site
                split = int(stream(seed, "histology split", patient, n).random() < _VALIDATION_SHARE)
                x, y = (int(start) + SIDE * step for start, step in zip(corner, (n % 32, n // 32)))
                yield PatchRow(patient, node, x, y, n % 2, slide, centre, split)


def simulate_patch(
    patient: int, number: int, label: int, seed: int = 0, severity: float = 1.0
) -> tuple[ndarray, ndarray]:
    """A patch of a patient, (96, 96, 3) uint8, and where its tumour is, (96, 96) bool; `label` as `rows` have it."""
    hospital = SITES[f"hospital_{patient // _PATIENTS_PUBLISHED + 1}"].at_severity(severity)
    person = _person(seed, patient, hospital.stain_spread)
    section = make_section(person, label, stream(seed, "histology section", patient, number), SIDE * FINER,
                  hospital.um_per_pixel / FINER)
    strength = np.array([hospital.haematoxylin * person.haematoxylin, hospital.eosin * person.eosin, 1], np.float32)
    light = transmittance(section.stain * strength, stain_vectors(hospital))
    picture = scan_slide(_pixels(light).mean(axis=0), hospital, stream(seed, "histology camera", patient, number))
    return picture, np.asarray(_pixels(section.tumour).any(axis=0))


def make_histology_phantom(root: Path, patches_per_site: int = 240, patients_per_site: int = 6, seed: int = 0,
                           progress: Callable[[int, int], None] | None = None, severity: float = 1.0) -> None:
    """Write the collection to `root`, whole or not at all: metadata.csv and patches, as camelyon17_v1.0 has them.

    Args:
        root: a folder that does not exist yet, or is empty.
        patches_per_site: dealt to the patients in turn.
        patients_per_site: each has one slide; 1 to 20.
        seed: the same arguments give the same bytes (with the same versions of NumPy, SciPy and Pillow). Fewer patches
            of as many patients are the first ones of more.
        progress: called with (patches done, patches in all).
        severity: how far the hospitals depart from one reference: 0 all alike, 1 as drawn, 2 twice as far.

    Raises:
        UserError: if `root` holds something already.
        ValueError: if a site would have no patch of some patient, or more than 20 patients, or severity is negative.
    """
    if not 1 <= patients_per_site <= _PATIENTS_PUBLISHED or patches_per_site < patients_per_site or severity < 0:
        given = f"{patches_per_site}, {patients_per_site} and {severity}"
        raise ValueError(
            f"need patches_per_site >= patients_per_site, 1 to {_PATIENTS_PUBLISHED}, severity >= 0; got {given}"
        )
    facts = {"what": "drawn lymph nodes, stained and scanned by simulated laboratories; no patient",
             "generator": "medfed histology phantom", "version": VERSION, "seed": seed,
             "patches_per_site": patches_per_site, "patients_per_site": patients_per_site, "severity": severity}
    table = list(patch_table(patches_per_site, patients_per_site, seed))
    with atomic_collection(root, **facts) as folder:
        _write_table(folder / "metadata.csv", table)
        numbers: dict[int, int] = {}
        for done, row in enumerate(table, 1):
            number = numbers[row.patient] = numbers.get(row.patient, -1) + 1
            picture, _ = simulate_patch(row.patient, number, row.tumour, seed, severity)
            file = folder / "patches" / row.file
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).convert("RGBA").save(file, compress_level=3)  # as published: RGBA, all opaque
            if progress:
                progress(done, len(table))


def _pixels(fine: ndarray) -> ndarray:
    """(FINER * FINER, 96, 96, ...): what each pixel of the patch covers of the section."""
    return np.stack([fine[row::FINER, column::FINER] for row in range(FINER) for column in range(FINER)])


def _write_table(path: Path, table: list[PatchRow]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows(
            (index, f"{row.patient:03d}", row.node, row.x, row.y, row.tumour, row.slide, row.centre, row.split)
            for index, row in enumerate(table)
        )


@lru_cache(maxsize=128)
def _person(seed: int, patient: int, stain_spread: float) -> Patient:
    return Patient.sample(stream(seed, "histology patient", patient), stain_spread)
