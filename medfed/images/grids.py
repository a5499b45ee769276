"""Voxel grids: their size, their affine, and masks on the grid of an image without interpolation."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np

from medfed.core.errors import Problem

TOLERANCE = 0.1  # in voxels, at the corners of the mask
MAX_VOXELS = 1 << 29  # 512 x 512 x 2048, a CT of the whole body: 2 GB in float32
MIN_SPACING_MM, MAX_SPACING_MM = 1e-4, 100.0  # finer than light microscopes, and coarser than any scanner
MAX_SHEAR_DEGREES = 1.0  # between the axes of a volume; distances in mm expect right angles


def check_size(path: Path, n_voxels: int) -> None:
    """Raise a Problem if a volume has no voxels, or more than `MAX_VOXELS`, all channels together."""
    if not 0 < n_voxels <= MAX_VOXELS:
        found = f"the volume has {n_voxels:,} voxels; expected 1 to {MAX_VOXELS:,}"
        cure = "crop or resample it" if n_voxels > 0 else "copy the file again from its source"
        raise Problem("volume that is too large or empty", path, found, cure)


def check_spacing(path: Path, spacing: np.ndarray) -> None:
    """Raise a Problem if a voxel size is not a number in [`MIN_SPACING_MM`, `MAX_SPACING_MM`]."""
    if not ((spacing >= MIN_SPACING_MM) & (spacing <= MAX_SPACING_MM)).all():
        sizes = " x ".join(f"{size:g}" for size in spacing)
        found = f"the voxel size in the header is {sizes} mm; expected {MIN_SPACING_MM:g} to {MAX_SPACING_MM:g} mm"
        raise Problem("impossible voxel size", path, found, "correct the header")


def check_affine(path: Path, affine: np.ndarray) -> None:
    """Raise a Problem if the axes of an affine matrix (4, 4) are not at right angles, or no possible voxel sizes."""
    with np.errstate(over="ignore", invalid="ignore"):
        spacing = np.linalg.norm(affine[:3, :3].astype(np.float64), axis=0)
    check_spacing(path, np.where(np.isfinite(affine).all(), spacing, np.nan))
    cosines = (affine[:3, :3] / spacing).T @ (affine[:3, :3] / spacing)
    shear = np.degrees(np.arcsin(np.abs(np.triu(cosines, 1)).max().clip(0, 1)))
    if shear > MAX_SHEAR_DEGREES:
        found = (
            f"the axes of the volume are {shear:.3g} degrees away from right angles by the affine in the header; "
            f"expected at most {MAX_SHEAR_DEGREES:g}"
        )
        raise Problem("axes not at right angles", path, found, "correct the header, or resample the image")


def other_unit(path: Path, unit: str, key: str) -> Problem:
    """Return the problem that a header gives lengths in another unit than millimetres."""
    found = f"the header gives the voxel size in {unit} ({key}); expected millimetres, in which distances are reported"
    return Problem("voxel size in another unit", path, found, "convert the header")


def reorder_axes(
    voxels: np.ndarray, affine: np.ndarray, grid_affine: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Exchange and reverse the axes of voxels (H, W, D, ...) as in a grid, of which they may cover any part.

    Also return the index of the first voxel in the grid; None if a corner does not lie on a voxel of it.
    """
    to_grid = np.linalg.inv(grid_affine) @ affine
    orientation = nib.io_orientation(to_grid)
    to_grid = to_grid @ nib.orientations.inv_ornt_aff(orientation, voxels.shape[:3])
    reordered = nib.apply_orientation(voxels, orientation)
    corners = np.array(list(np.ndindex(2, 2, 2))) * (np.array(reordered.shape[:3]) - 1)
    moved = corners @ to_grid[:3, :3].T + to_grid[:3, 3] - corners
    start = np.rint(to_grid[:3, 3])
    return (reordered, start.astype(np.int64)) if np.abs(moved - start).max() <= TOLERANCE else None
