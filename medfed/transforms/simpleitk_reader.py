"""A reader of MHA, MHD and NRRD for MONAI's LoadImage, on SimpleITK: MONAI's own needs the 1.5 GB `itk` package."""

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
    """Give the same array and the same affine (RAS, millimetres) as nibabel gives for the same image in NIfTI.

    Arrays are (X, Y[, Z]); with several values a voxel, or a fourth axis, those come last. Several files become one
    array with a new first axis, one channel a file; they must agree in shape and affine.

    Use it as `LoadImage(reader=SimpleITKReader())`.
    """

    def verify_suffix(self, filename: Sequence[str | PathLike] | str | PathLike) -> bool:
        return all(str(name).lower().endswith(SUFFIXES) for name in _as_list(filename))

    def read(self, data: Sequence[str | PathLike] | str | PathLike, **kwargs: Any) -> sitk.Image | list[sitk.Image]:
        """Read one file or a list of files; `kwargs` go to `SimpleITK.ReadImage`. RuntimeError if one is unreadable."""
        images = [sitk.ReadImage(str(name), **kwargs) for name in _as_list(data)]
        return images if len(images) > 1 else images[0]

    def get_data(self, img: sitk.Image | Sequence[sitk.Image]) -> tuple[np.ndarray, dict]:
        """Array and metadata (affine, spatial shape, place of channels); ValueError if images do not fit together."""
        if isinstance(img, sitk.Image):  # asked first: to walk through an sitk.Image is to walk through its voxels
            return _array(img), _metadata(img, _channel_axis(img))
        arrays, affines = [_array(one) for one in img], [affine_matrix(one) for one in img]
        fits = all(a.shape == arrays[0].shape and np.allclose(f, affines[0]) for a, f in zip(arrays, affines))
        if not fits or _channel_axis(img[0]) is not None:
            raise ValueError(f"{len(img)} images to stack must have one channel each, the same shape, the same affine")
        return np.stack(arrays), _metadata(img[0], 0)


def affine_matrix(image: sitk.Image) -> np.ndarray:
    """(4, 4) float64 from voxel indices to millimetres in RAS; a 2-D image lies in the plane z = 0."""
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
    """SimpleITK has (Z, Y, X[, value]); nibabel, and so MONAI, (X, Y, Z[, value])."""
    array = sitk.GetArrayFromImage(image)
    dimension = image.GetDimension()
    return array.transpose(*range(dimension - 1, -1, -1), *range(dimension, array.ndim))


def _channel_axis(image: sitk.Image) -> int | None:
    return -1 if image.GetNumberOfComponentsPerPixel() > 1 or image.GetDimension() > 3 else None


def _metadata(image: sitk.Image, channel_axis: int | None) -> dict:
    return {
        MetaKeys.AFFINE: affine_matrix(image),
        MetaKeys.ORIGINAL_AFFINE: affine_matrix(image),
        MetaKeys.SPATIAL_SHAPE: np.asarray(image.GetSize()[:3]),
        MetaKeys.SPACE: SpaceKeys.RAS,
        MetaKeys.ORIGINAL_CHANNEL_DIM: float("nan") if channel_axis is None else channel_axis,
    }
