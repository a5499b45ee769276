"""Read NIfTI files with nibabel."""

from __future__ import annotations

import gzip
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nibabel as nib
import numpy as np
from monai.data.utils import correct_nifti_header_if_necessary
from nibabel import imageglobals

from medfed.core.errors import Problem
from medfed.images import grids
from medfed.images.problems import library_errors

SUFFIXES = (".nii.gz", ".nii")
MAX_BYTES_BEHIND = 1 << 16  # after the voxels, which some programs fill up to a multiple of their block size
_OTHER_UNITS = {1: "metres", 3: "micrometres"}  # codes of `xyzt_units` in a NIfTI header


def read(path: Path) -> tuple[np.ndarray, int, np.ndarray]:
    """Return the voxels of a file, (X, Y[, Z[, C]]), the number of their axes in space, and the affine (4, 4)."""
    with library_errors(path), _quiet_nibabel():
        image = nib.load(path)
        if not isinstance(image, nib.Nifti1Image):  # a CIFTI file has this ending, too
            found = f"the file contains a {type(image).__name__}; expected a NIfTI volume"
            raise Problem("file that is no volume", path, found, "save the image as one")
        grids.check_size(path, math.prod(image.shape))
        with gzip.open(path) if path.name.lower().endswith(".gz") else open(path, "rb") as file:
            content = file.read()  # up to the checksum: nibabel alone reads 83 of 100 files with a flipped bit
        image = type(image).from_bytes(content)
        _check_header(path, image, content)
        image = correct_nifti_header_if_necessary(image)
        return np.asanyarray(image.dataobj), min(len(image.shape), 3), image.affine


def _check_header(path: Path, image: nib.Nifti1Image, content: bytes) -> None:
    """Raise a Problem if the type or the unit of the voxels is impossible, or if the file has another length."""
    # nibabel itself silently replaces 0 mm by 1 mm
    header = type(image.header).from_fileobj(io.BytesIO(content), check=False)
    grids.check_spacing(path, header["pixdim"][1 : 1 + min(len(image.shape), 3)])
    grids.check_affine(path, image.affine)
    if unit := _OTHER_UNITS.get(int(header["xyzt_units"]) & 7):
        raise grids.other_unit(path, unit, "xyzt_units")
    n_bits, dtype, start = int(header["bitpix"]), image.get_data_dtype(), int(header["vox_offset"])
    if n_bits != 8 * dtype.itemsize or start < header.single_vox_offset:
        found = f"the header gives voxels of {n_bits} bits (bitpix) and of the type {dtype} from byte {start}"
        expected = f"expected the length of the type, and a start at byte {header.single_vox_offset} or later"
        raise Problem("damaged header", path, f"{found}; {expected}", "copy the file again from its source")
    n_bytes = start + math.prod(image.shape) * dtype.itemsize
    if not n_bytes <= len(content) <= n_bytes + MAX_BYTES_BEHIND:
        found = f"the file has {len(content):,} bytes; expected {n_bytes:,} bytes by the size and type in its header"
        raise Problem("file of another length", path, found, "copy it again from its source")


@contextmanager
def _quiet_nibabel() -> Iterator[None]:
    """Silence nibabel's messages about corrected headers; this module checks the important fields itself."""
    was_disabled = imageglobals.logger.disabled
    imageglobals.logger.disabled = True  # to set its level would empty the caches of all loggers, for each file
    try:
        yield
    finally:
        imageglobals.logger.disabled = was_disabled
