"""The synthetic six-site prostate T2 collection, in the layout of the published one (Liu et al., SAML and MS-Net).

Nothing in it comes from a patient. Scores on it say whether the code works, never how a method does in a hospital.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
from numpy import ndarray

from medfed.phantoms.synthesis.collection import atomic_collection, stream
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
from medfed.phantoms.synthesis.prostate_sites import REFERENCE, REFERENCE_FOV_MM, SITES
from medfed.phantoms.synthesis.shapes import regular_grid

VERSION = 1
MARGIN_MM = 9.0    # above and below the gland that a stack covers, together
SLICES = (12, 22)  # fewest and most in a stack


@dataclass(frozen=True)
class Examination:
    """One simulated case: image (X, Y, Z) float32 of whole numbers, mask (X, Y, Z) uint8, affine to RAS mm."""

    image: ndarray
    mask: ndarray
    affine: ndarray


def simulate_examination(
    site_name: str, number: int, matrix: int = 128, seed: int = 0, severity: float = 1.0
) -> Examination:
    """Simulate one case of one site; see `make_prostate_phantom` for the arguments."""
    site, rng = SITES[site_name], stream(seed, "scan", site_name, number)
    patient = Patient.sample(stream(seed, "patient", site_name, number), balloon=site.coil == "endorectal")
    scanner = site.scanners[rng.integers(len(site.scanners))].interpolate_from(REFERENCE, severity).sample_session(rng)
    spacing = REFERENCE_FOV_MM * (rng.uniform(*site.fov_mm) / REFERENCE_FOV_MM) ** severity / matrix
    gap = float(rng.uniform(*site.gap_mm))
    z, y, x = _prescribe(patient, spacing, gap, matrix, rng)
    parts_of_slice = [place * gap * site.thickness_ratio for place, _ in SLICE_PROFILE]
    grid = add_textures(patient, regular_grid(np.add.outer(z, parts_of_slice).ravel(), y, x, spacing))
    bare = average_slices(magnetisation(anatomy(patient, grid), grid, scanner, patient.brightness))
    coil_y_mm = patient.gland_mm[1] / 2 + patient.rectum_mm
    coils = coil_sensitivity(regular_grid(z, y, x, spacing), scanner, coil_y_mm, patient.body.skin_y_mm, rng)
    image = to_stored_units(acquire(bare * coils, scanner, rng), scanner)
    gland, transition = (average_slices(zone) > 0.5 for zone in zone_coverage(patient, grid))
    mask = gland.astype(np.uint8) + (gland & transition if site.zones else np.uint8(0))
    affine = _affine(spacing, gap, (x[0], y[0], z[0]), stream(seed, "table", site_name, number))
    return Examination(image.T, mask.T, affine)


def _prescribe(patient: Patient, spacing: float, gap: float, matrix: int, rng: np.random.Generator) -> tuple:
    """z, y, x positions in mm: a stack that covers the gland with a slice to spare, roughly centred on it."""
    n_slices = int(np.clip(np.ceil((patient.gland_mm[2] + MARGIN_MM) / gap), *SLICES))
    z = (np.arange(n_slices) - (n_slices - 1) / 2) * gap + np.clip(rng.normal(0, 1), -1.5, 1.5)
    across = (np.arange(matrix) - (matrix - 1) / 2) * spacing
    return z, across + rng.normal(2, 4), across + rng.normal(0, 2.5)


def _affine(spacing: float, gap: float, corner: tuple, rng: np.random.Generator) -> ndarray:
    """Voxel to RAS mm for columns to the left, rows to the back, slices to the head, tilted as axial stacks are."""
    tilt, iso = np.radians(rng.uniform(0, 14)), rng.normal(0, (4, 12, 15))
    cos, sin = np.cos(tilt), np.sin(tilt)
    turn = np.array([[-1, 0, 0], [0, -cos, -sin], [0, -sin, cos]])
    affine = np.eye(4)
    affine[:3, :3] = turn * (spacing, spacing, gap)
    affine[:3, 3] = turn @ np.array(corner) + iso
    return affine


def _write(path: Path, array: ndarray, affine: ndarray) -> None:
    """Compressed NIfTI without a time stamp: the same array gives the same bytes."""
    picture = nib.Nifti1Image(array, affine)
    picture.set_qform(affine, 1)
    picture.set_sform(affine, 1)
    picture.header.set_xyzt_units("mm")
    path.write_bytes(gzip.compress(picture.to_bytes(), 1, mtime=0))


def make_prostate_phantom(root: Path, cases_per_site: int = 8, matrix: int = 128, seed: int = 0,
                          progress: Callable[[int, int], None] | None = None, severity: float = 1.0) -> None:
    """Write the collection to `root`, whole or not at all.

    Args:
        root: a folder that does not exist yet, or is empty.
        cases_per_site: at most; a site never has more than were published (I2CVB 19, UCL 13, BIDMC and HK 12).
        matrix: rows and columns of a slice; the spacing follows from the field of view. The anatomy does not change.
        seed: the same arguments give the same bytes.
        progress: called with (cases done, cases in all).
        severity: how far the sites' scanners depart from the reference: 0 all alike but for the squeezed gland of the
            endorectal sites, 1 as published; the field of view takes part.

    Raises:
        UserError: if `root` holds something already.
        ValueError: if a count is below 1 (matrix: 32), or severity is negative.
    """
    if cases_per_site < 1 or matrix < 32 or severity < 0:
        given = f"{cases_per_site}, {matrix} and {severity}"
        raise ValueError(f"need cases_per_site >= 1, matrix >= 32 and severity >= 0, got {given}")
    facts = {"what": "drawn prostate anatomy on simulated T2 MRI scanners; no patient",
             "generator": "medfed prostate phantom", "version": VERSION, "seed": seed, "matrix": matrix,
             "cases_per_site": cases_per_site, "severity": severity}
    cases = [(name, number) for name, site in SITES.items() for number in site.numbers[:cases_per_site]]
    with atomic_collection(root, **facts) as folder:
        for done, (name, number) in enumerate(cases, 1):
            case = simulate_examination(name, number, matrix, seed, severity)
            (folder / name).mkdir(exist_ok=True)
            _write(folder / name / f"Case{number:02d}.nii.gz", case.image, case.affine)
            _write(folder / name / f"Case{number:02d}{SITES[name].suffix}.nii.gz", case.mask, case.affine)
            if progress:
                progress(done, len(cases))
