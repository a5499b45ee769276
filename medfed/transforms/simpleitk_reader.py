"""Image reader for MONAI's LoadImage that reads MHA, MHD, NRRD and NIfTI with SimpleITK.

MONAI's own reader of these formats needs the package `itk`, which has 1.5 GB.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
import SimpleITK as sitk
from monai.data.image_reader import ImageReader
from monai.utils import MetaKeys, SpaceKeys

SUFFIXES = (".mha", ".mhd", ".nrrd", ".nhdr", ".nii", ".nii.gz")
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


class SimpleITKReader(ImageReader):
    """Read an image with SimpleITK as nibabel would read it from NIfTI: same array, same affine (RAS, millimetres).

    Use it as `LoadImage(reader=SimpleITKReader())`. Arrays are (X, Y[, Z]); several values per voxel, or a fourth axis,
    come last. Several files become one array with a new first axis, one channel per file; they must have one channel
    each, and the same shape and affine.
    """

    def verify_suffix(self, filename: Sequence[str | PathLike] | str | PathLike) -> bool:
        """Return whether all names end in .mha, .mhd, .nrrd, .nhdr, .nii or .nii.gz, in upper or lower case."""
        return all(str(name).lower().endswith(SUFFIXES) for name in _as_list(filename))

    def read(self, data: Sequence[str | PathLike] | str | PathLike, **kwargs: Any) -> sitk.Image | list[sitk.Image]:
        """Read one path to one SimpleITK image, or several paths to a list; `kwargs` go to `SimpleITK.ReadImage`.

        Raises:
            RuntimeError: if a file cannot be read.
        """
        images = [sitk.ReadImage(str(name), **{"imageIO": image_io(name), **kwargs}) for name in _as_list(data)]
        return images if len(images) > 1 else images[0]

    def get_data(self, img: sitk.Image | Sequence[sitk.Image]) -> tuple[np.ndarray, dict]:
        """Convert SimpleITK images to an array and MONAI's metadata (affine, spatial shape and channel axis).

        The array is (X, Y[, Z]) for one image with one channel, (X, Y[, Z], C) for one image with C channels, and (N,
        X, Y[, Z]) for a sequence of N images.

        Raises:
            ValueError: if the images of a sequence differ in shape or affine, or have more than one channel.
        """
        if isinstance(img, sitk.Image):  # checked first, because iterating over an sitk.Image yields its voxels
            return _array(img), _metadata(img, _channel_axis(img))
        arrays, affines = [_array(image) for image in img], [affine_matrix(image) for image in img]
        fits = all(a.shape == arrays[0].shape and np.allclose(f, affines[0]) for a, f in zip(arrays, affines))
        if not fits or _channel_axis(img[0]) is not None:
            raise ValueError(f"{len(img)} images to stack must have one channel each, and the same shape and affine")
        return np.stack(arrays), _metadata(img[0], 0)


def image_io(path: str | PathLike) -> str:
    """Return the part of SimpleITK that reads a file; "" lets SimpleITK try all its formats, whatever the name says."""
    name = str(path).lower()
    if name.endswith((".mha", ".mhd")):
        return "MetaImageIO"
    return "NrrdImageIO" if name.endswith((".nrrd", ".nhdr")) else ""


def affine_matrix(image: sitk.Image) -> np.ndarray:
    """Return the (4, 4) matrix from voxel indices to RAS coordinates in mm; a 2-D image lies in the plane z = 0."""
    dimension = min(image.GetDimension(), 3)
    size = image.GetDimension()
    direction = np.reshape(image.GetDirection(), (size, size))[:dimension, :dimension]
    result = np.eye(4)
    result[:dimension, :dimension] = direction * np.asarray(image.GetSpacing()[:dimension])
    result[:dimension, 3] = image.GetOrigin()[:dimension]
    return LPS_TO_RAS @ result


def _as_list(names: Sequence[str | PathLike] | str | PathLike) -> list[str | PathLike]:
    return [names] if isinstance(names, str | PathLike) else list(names)


def _array(image: sitk.Image) -> np.ndarray:
    """Return the voxels in nibabel's order (X, Y, Z[, value]); SimpleITK's order is (Z, Y, X[, value])."""
    array = sitk.GetArrayFromImage(image)
    dimension = image.GetDimension()
    return array.transpose(*range(dimension - 1, -1, -1), *range(dimension, array.ndim))


def _channel_axis(image: sitk.Image) -> int | None:
    """Return -1 if the array has a last axis for several values per voxel, else None."""
    return -1 if image.GetNumberOfComponentsPerPixel() > 1 or image.GetDimension() > 3 else None


def _metadata(image: sitk.Image, channel_axis: int | None) -> dict:
    """Return the metadata that MONAI's transforms expect."""
    return {
        MetaKeys.AFFINE: affine_matrix(image),
        MetaKeys.ORIGINAL_AFFINE: affine_matrix(image),
        MetaKeys.SPATIAL_SHAPE: np.asarray(image.GetSize()[:3]),
        MetaKeys.SPACE: SpaceKeys.RAS,
        MetaKeys.ORIGINAL_CHANNEL_DIM: float("nan") if channel_axis is None else channel_axis,
    }
