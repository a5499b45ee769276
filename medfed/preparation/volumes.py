"""Convert volumes of the original collections to NIfTI: image and mask on one voxel grid."""

from __future__ import annotations

import gzip
import re
from collections import defaultdict
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from monai.data import MetaTensor

from medfed.core.errors import UserError
from medfed.images import reading

MAX_STEP_DEVIATION = 0.01  # of the distance between two slices
MAX_VOLUME_CHANGE = 0.1  # of the mask's volume, when it is resampled
_POSITION, _ORIENTATION, _SERIES = "0020|0032", "0020|0037", "0020|000e"  # DICOM tags
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")


def pair_as_nifti(site: str, name: str, image: MetaTensor, mask: MetaTensor, path: Path) -> dict[str, bytes]:
    """Return `SITE/NAME.nii.gz` and `SITE/NAME_segmentation.nii.gz`, with the mask on the image's grid (nearest).

    Image and mask are (1, H, W, D) with affines in millimetres; equal inputs give equal bytes. UserError, with the
    mask's `path`, if the mask is empty or a part of it lies outside the image.
    """
    marked = MetaTensor((mask.as_tensor() > 0).to(torch.uint8), affine=mask.affine, meta={"label_values": [0, 1]})
    if not marked.any():
        raise UserError("the mask marks nothing")
    try:
        reading.check_pair(path, image, path, marked, ignore_geometry=False)
        fitted = marked
    except UserError:
        fitted = reading.resample_mask(path, image, path, marked)
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


def read_series(folder: Path) -> MetaTensor:
    """Return the volume of a folder with one DICOM series, (1, H, W, D) float32, with an affine as in NIfTI.

    UserError if the folder has no series or several, or if slices differ in size or orientation, lie at unequal
    distances or cannot be read.
    """
    import SimpleITK as sitk  # slow to import

    from medfed.transforms.simpleitk_reader import affine_matrix

    paths = _sorted_slices(folder)
    try:
        image = sitk.ReadImage([str(path) for path in paths])
    except RuntimeError as error:
        raise UserError(f"cannot read the DICOM files ({str(error).strip().rpartition(chr(10))[2]})") from None
    voxels = sitk.GetArrayFromImage(image).astype(np.float32)
    affine = torch.from_numpy(affine_matrix(image))
    return MetaTensor(torch.from_numpy(voxels.transpose(2, 1, 0).copy())[None], affine=affine)


def _sorted_slices(folder: Path) -> list[Path]:
    """Files of the only series in a folder in the order of their positions; check their distances."""
    import SimpleITK as sitk

    series: dict[str, list[tuple[float, Path]]] = defaultdict(list)
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.name.startswith(".") or path.name.upper() in ("DICOMDIR", "LICENSE"):
            continue
        reader = sitk.ImageFileReader()
        reader.SetImageIO("GDCMImageIO")
        reader.SetFileName(str(path))
        try:
            reader.ReadImageInformation()
            position, orientation = (
                np.array([float(number) for number in _NUMBER.findall(reader.GetMetaData(tag))])
                for tag in (_POSITION, _ORIENTATION)
            )
            normal = np.cross(orientation[:3], orientation[3:])
            series[reader.GetMetaData(_SERIES)].append((float(position @ normal), path))
        except (RuntimeError, ValueError):
            raise UserError(f"{path.name} in the folder {folder.name} is no DICOM file with a position") from None
    if len(series) != 1:
        raise UserError(f"the folder {folder.name} contains {len(series)} DICOM series; expected one")
    slices = sorted(next(iter(series.values())))
    steps = np.diff([position for position, _ in slices])
    if len(steps) == 0 or steps.min() <= 0 or np.ptp(steps) > MAX_STEP_DEVIATION * np.median(steps):
        raise UserError(f"the slices in the folder {folder.name} lie at unequal distances; a slice may be missing")
    return [path for _, path in slices]


def _nifti(voxels: np.ndarray, affine: np.ndarray) -> bytes:
    """Return a compressed NIfTI file (H, W, D); whole numbers are stored as integers."""
    if voxels.dtype != np.uint8 and (voxels == voxels.round()).all() and np.abs(voxels).max() < 1 << 15:
        voxels = voxels.astype(np.int16)
    return gzip.compress(nib.Nifti1Image(voxels, affine).to_bytes(), compresslevel=6, mtime=0)
