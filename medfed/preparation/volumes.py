"""Convert volumes of the original collections to NIfTI: image and mask on one voxel grid."""

from __future__ import annotations

import gzip
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from monai.data import MetaTensor

from medfed.core.errors import UserError
from medfed.images import pairs

MAX_VOLUME_CHANGE = 0.1  # of the mask's volume, when it is resampled


def pair_as_nifti(site: str, name: str, image: MetaTensor, mask: MetaTensor, path: Path) -> dict[str, bytes]:
    """Return `SITE/NAME.nii.gz` and `SITE/NAME_segmentation.nii.gz`, with the mask on the image's grid (nearest).

    Image and mask are (1, H, W, D) with affines in millimetres; equal inputs give equal bytes. UserError, with the
    mask's `path`, if the mask is empty or a part of it lies outside the image.
    """
    marked = MetaTensor((mask.as_tensor() > 0).to(torch.uint8), affine=mask.affine, meta={"label_values": [0, 1]})
    if not marked.any():
        raise UserError("the mask marks nothing")
    try:
        pairs.check_pair(path, image, path, marked, ignore_geometry=False)
        fitted = marked
    except UserError:
        fitted = pairs.resample_mask(path, image, path, marked)
        before, after = (float(m.sum()) * abs(np.linalg.det(m.affine[:3, :3].numpy())) for m in (marked, fitted))
        if abs(after - before) > MAX_VOLUME_CHANGE * before:
            raise UserError(
                "a part of the mask lies outside the image: resampled to the voxels of the image, it has "
                f"{after / before:.0%} of its volume"
            ) from None
    return {
        f"{site}/{name}.nii.gz": _nifti(image.numpy()[0], image.affine.numpy()),
        f"{site}/{name}_segmentation.nii.gz": _nifti(fitted.numpy()[0].astype(np.uint8), image.affine.numpy()),
    }


def _nifti(voxels: np.ndarray, affine: np.ndarray) -> bytes:
    """Return a compressed NIfTI file (H, W, D); whole numbers are stored as integers."""
    if voxels.dtype != np.uint8 and (voxels == voxels.round()).all() and np.abs(voxels).max() < 1 << 15:
        voxels = voxels.astype(np.int16)
    return gzip.compress(nib.Nifti1Image(voxels, affine).to_bytes(), compresslevel=6, mtime=0)
