"""Generator of the prostate phantom: T2-weighted MRI from six simulated sites in the file layout of the dataset
`prostate`.

The images contain no patient data. Scores on them show whether the code works, not how a method performs in a hospital.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
from numpy import ndarray

from medfed.datasets.base import Progress
from medfed.phantoms.synthesis.common import stream
from medfed.phantoms.synthesis.mri_scanner import (
    SLICE_PROFILE,
    acquire,
    average_slices,
    coil_sensitivity,
    magnetisation,
    to_stored_units,
)
from medfed.phantoms.synthesis.prostate_anatomy import add_textures, anatomy, zone_coverage
from medfed.phantoms.synthesis.prostate_patient import Patient
from medfed.phantoms.synthesis.prostate_sites import SITES
from medfed.phantoms.synthesis.shapes import regular_grid

VERSION = 1
MARGIN_MM = 9.0  # the stack of slices is longer than the gland by this length, above and below together
SLICES = (12, 22)  # smallest and largest number of slices


@dataclass(frozen=True)
class Examination:
    """Image (X, Y, Z) from 0 to 4095, mask (2: transition zone, where the site has zones), and affine (4, 4)."""

    image: ndarray
    mask: ndarray
    affine: ndarray


def simulate_examination(site_name: str, number: int, matrix: int = 128, seed: int = 0) -> Examination:
    """Simulate one case, which equal arguments repeat; for every `matrix`, anatomy and field of view are the same."""
    site, rng = SITES[site_name], stream(seed, "scan", site_name, number)
    patient = Patient.sample(stream(seed, "patient", site_name, number), balloon=site.coil == "endorectal")
    scanner = site.scanners[rng.integers(len(site.scanners))].sample_session(rng)
    spacing = rng.uniform(*site.fov_mm) / matrix
    gap = float(rng.uniform(*site.gap_mm))
    z, y, x = _prescribe(patient, spacing, gap, matrix, rng)
    parts_of_slice = [place * gap * site.thickness_ratio for place, _ in SLICE_PROFILE]
    grid = add_textures(patient, regular_grid(np.add.outer(z, parts_of_slice).ravel(), y, x, spacing))
    magnetisation_image = average_slices(magnetisation(anatomy(patient, grid), grid, scanner, patient.brightness))
    coil_y_mm = patient.gland_mm[1] / 2 + patient.rectum_mm
    coils = coil_sensitivity(regular_grid(z, y, x, spacing), scanner, coil_y_mm, patient.body.skin_y_mm, rng)
    image = to_stored_units(acquire(magnetisation_image * coils, scanner, rng), scanner)
    gland, transition = (average_slices(zone) > 0.5 for zone in zone_coverage(patient, grid))
    mask = gland.astype(np.uint8) + (gland & transition if site.zones else np.uint8(0))
    affine = _affine(spacing, gap, (x[0], y[0], z[0]), stream(seed, "table", site_name, number))
    return Examination(image.T, mask.T, affine)


def _prescribe(patient: Patient, spacing: float, gap: float, matrix: int, rng: np.random.Generator) -> tuple:
    """Sample the z, y and x positions in mm of a stack of slices that covers the gland and is roughly centred on it."""
    n_slices = int(np.clip(np.ceil((patient.gland_mm[2] + MARGIN_MM) / gap), *SLICES))
    z = (np.arange(n_slices) - (n_slices - 1) / 2) * gap + np.clip(rng.normal(0, 1), -1.5, 1.5)
    across = (np.arange(matrix) - (matrix - 1) / 2) * spacing
    return z, across + rng.normal(2, 4), across + rng.normal(0, 2.5)


def _affine(spacing: float, gap: float, corner: tuple, rng: np.random.Generator) -> ndarray:
    """Sample the affine (4, 4) from voxels (columns left, rows to the back, slices up) to RAS mm, with a tilt."""
    tilt, iso = np.radians(rng.uniform(0, 14)), rng.normal(0, (4, 12, 15))
    cos, sin = np.cos(tilt), np.sin(tilt)
    rotation = np.array([[-1, 0, 0], [0, -cos, -sin], [0, -sin, cos]])
    affine = np.eye(4)
    affine[:3, :3] = rotation * (spacing, spacing, gap)
    affine[:3, 3] = rotation @ np.array(corner) + iso
    return affine


def _write(path: Path, array: ndarray, affine: ndarray) -> None:
    """Write a compressed NIfTI file without a time stamp, so that the same array gives the same bytes."""
    image = nib.Nifti1Image(array, affine)
    image.set_qform(affine, 1)
    image.set_sform(affine, 1)
    image.header.set_xyzt_units("mm")
    path.write_bytes(gzip.compress(image.to_bytes(), 1, mtime=0))


def write_examinations(folder: Path, cases_per_site: int, matrix: int, seed: int, progress: Progress) -> None:
    """Write the volumes and masks of all sites to a folder, with the settings of `ProstatePhantom`."""
    cases = [(name, number) for name, site in SITES.items() for number in site.numbers[:cases_per_site]]
    for name, number in progress(cases):
        case = simulate_examination(name, number, matrix, seed)
        (folder / name).mkdir(exist_ok=True)
        _write(folder / name / f"Case{number:02d}.nii.gz", case.image, case.affine)
        _write(folder / name / f"Case{number:02d}{SITES[name].suffix}.nii.gz", case.mask, case.affine)
