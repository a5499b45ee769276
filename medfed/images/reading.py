"""Read one image or one mask of any supported file format, and check it.

What is wrong with a file is raised as a Problem. Conversions and unusual properties are notices: short descriptions
that are appended to a list of the caller, with the same text for every file, so that a report can count them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from monai.data import MetaTensor
from torch import Tensor

from medfed.core.errors import Problem
from medfed.images import mha_nrrd, nifti, two_dimensional

SUFFIXES = (*nifti.SUFFIXES, *mha_nrrd.SUFFIXES, *two_dimensional.SUFFIXES)
MIN_USUAL_MM, MAX_USUAL_MM = 0.01, 25.0  # a smaller or larger voxel is rarely one of a scanner or microscope
MAX_NOISE = 16  # value of a mask without foreground that was stored as JPEG


def suffix(path: Path | str) -> str | None:
    """Return the suffix of an image file's name in lower case, such as ".nii.gz"; None if it is not supported."""
    name = str(path).lower()
    return next((ending for ending in SUFFIXES if name.endswith(ending)), None)


def is_2d_image_file(path: Path | str) -> bool:
    """Return whether a file is a 2-D image file (such as PNG, JPEG or TIFF) by the suffix of its name."""
    return suffix(path) in two_dimensional.SUFFIXES


def read_image(path: Path, channels: int, notices: list[str], intensity_max: float | None = None) -> MetaTensor:
    """Read an image file of any supported format: (C, H, W, D) float32, finite.

    2-D images are scaled to [0, 255], those with more than 8 bits so that `intensity_max` is white, and have D = 1.
    """
    check_file(path)
    if is_2d_image_file(path):
        pixels = two_dimensional.read_image_file(path, intensity_max, notices)
        image = _match_channels(path, MetaTensor(torch.from_numpy(pixels)[..., None]), channels, notices)
    else:
        image = read_volume(path)
        if image.shape[-1] == 1:
            notices.append("only one slice")
        spacing = spacing_mm(path, image) or (1,)
        if min(spacing) < MIN_USUAL_MM or max(spacing) > MAX_USUAL_MM:
            notices.append("voxels below 0.01 mm or above 25 mm (a header in another unit than mm?)")
    return check_image(path, image, channels, notices)


def read_volume(path: Path) -> MetaTensor:
    """Read a NIfTI, MHA or NRRD file, (C, H, W, D) float32, with its intensities; C is 1 without a fourth axis."""
    format_of_file = nifti if suffix(path) in nifti.SUFFIXES else mha_nrrd
    voxels, n_axes, affine = format_of_file.read(path)
    if voxels.ndim > 4:
        found = f"the file has {voxels.ndim} axes, of the lengths {' x '.join(map(str, voxels.shape))}"
        cure = "save one of the volumes, or remove the axes of length 1"
        raise Problem("too many axes", path, f"{found}; expected three, or four with channels", cure)
    if voxels.dtype.kind not in "biuf":
        found = f"the file has voxels of the type {voxels.dtype}; expected real numbers"
        cure = "convert the image, for example to its magnitude in float32"
        raise Problem("voxels that are no real numbers", path, found, cure)
    channels_first = np.moveaxis(voxels, -1, 0) if voxels.ndim > n_axes else voxels[None]
    with np.errstate(over="ignore"):  # infinite values are reported later
        volume = np.array(channels_first, dtype=np.float32, order="C")
    return MetaTensor(torch.from_numpy(volume.reshape(*volume.shape, *[1] * (3 - n_axes))), affine=torch.tensor(affine))


def check_image(path: Path, image: MetaTensor, channels: int, notices: list[str]) -> MetaTensor:
    """Check that an image has C = `channels` and is finite, and return it; "constant image" is added to `notices`."""
    if len(image) != channels:
        found = f"the file contains {len(image)} volumes (along its fourth axis), expected {channels}"
        cure = (
            "keep only one of these volumes, such as one time point, or, if they are channels that every image has, "
            "set data.image_channels (data.name: folder)"
        )
        raise Problem("several volumes in a file", path, found, cure)
    _check_finite(path, image)
    low, high = image.as_tensor().aminmax()
    if low == high:
        notices.append("constant image")
    return image


def read_labels(
    path: Path, notices: list[str], threshold: float | None = None, two_colours: bool = False
) -> MetaTensor:
    """Read the whole numbers that a mask file stores, (1, H, W, D) float32, without assigning them to structures.

    Values above `threshold`, for soft edges, become 1 and all others 0. `two_colours`: see `read_label_file`.
    """
    check_file(path)
    if is_2d_image_file(path):
        labels = two_dimensional.read_label_file(path, notices, two_colours)
        mask = MetaTensor(torch.from_numpy(labels)[None, ..., None])
    else:
        mask = read_volume(path)
    if len(mask) > 1:
        found = f"the mask has {len(mask)} values per voxel; expected one label per voxel"
        cure = "save it with a single channel (in 3D Slicer: export the segmentation as a labelmap)"
        raise Problem("mask with several values per voxel", path, found, cure)
    _check_finite(path, mask)
    if threshold is not None:
        largest = float(mask.max())
        is_noise = path.suffix.lower() in (".jpg", ".jpeg") and largest <= MAX_NOISE
        if 0 < largest <= threshold and not is_noise:
            found = f"the largest value of the mask is {largest:g}; expected values above {threshold:g}"
            raise Problem("mask below the threshold", path, found, "decrease data.mask_threshold")
        return cast(MetaTensor, (mask > threshold).to(torch.float32))
    fractional = mask != mask.round()
    if fractional.any():
        found = f"the mask has fractional labels such as {float(mask[fractional][0]):.9g}; expected whole numbers"
        cure = "round them, or, if they are probabilities of one structure, set data.mask_threshold: 0.5"
        raise Problem("fractional labels", path, found, cure)
    return mask


def label_values(mask: Tensor) -> list[int]:
    """Return the different values of a mask of whole numbers, in ascending order."""
    values = mask.as_subclass(Tensor).flatten()  # operations on a MetaTensor take longer
    if values.numel() and 0 <= values.min() and values.max() < 1 << 16:
        return torch.bincount(values.int()).nonzero().flatten().tolist()
    return [int(value) for value in values.unique()]


def to_structures(
    path: Path, mask: MetaTensor, labels: Mapping[int, Sequence[str]], structures: Sequence[str]
) -> MetaTensor:
    """Convert a mask to one channel per structure; `labels`, such as {0: (), 1: ("disc",)}, has all allowed values."""
    values = label_values(mask)
    if not set(values) <= set(labels):
        expected = ", ".join(f"{value} ({' and '.join(labels[value]) or 'background'})" for value in sorted(labels))
        found = f"the mask has the labels {format_values(values)}; expected {expected}"
        cure = (
            "write the mask again with these values, or set data.mask_values, in which background lists values of no "
            "structure, as in {lesion: [4], background: [1, 2]} (data.name: folder)"
        )
        raise Problem("unknown labels", path, found, cure)
    channels = torch.zeros(len(structures), *mask.shape[1:], dtype=torch.uint8)
    for index, structure in enumerate(structures):
        for value in values:
            if structure in labels[value]:
                channels[index] |= mask.as_tensor()[0] == value
    return MetaTensor(channels, affine=mask.affine, meta={"label_values": values})


def spacing_mm(path: Path, image: MetaTensor) -> tuple[float, float, float] | None:
    """Return the voxel size of an image along H, W and D in mm, from its affine; None for a 2-D image file."""
    if is_2d_image_file(path):
        return None
    height, width, depth = torch.linalg.vector_norm(image.affine[:3, :3], dim=0).tolist()
    return round(height, 6), round(width, 6), round(depth, 6)


def format_values(values: Sequence[int]) -> str:
    """Return whole numbers as text, such as "0, 128, 255"; of more than eight, the first eight and the count."""
    listed = ", ".join(map(str, values[:8]))
    return f"{listed}, ... ({len(values)} values)" if len(values) > 8 else listed


def _match_channels(path: Path, image: MetaTensor, channels: int, notices: list[str]) -> MetaTensor:
    """Convert a 2-D image between grey and RGB, if that is allowed and loses no information."""
    if len(image) == 1 and channels == 3:
        notices.append("grey repeated as RGB")
        return cast(MetaTensor, image.repeat(3, 1, 1, 1))
    if len(image) == 3 and channels == 1:
        if not bool((image == image[:1]).all()):
            cure = "save it as grey, or set data.image_channels: 3 (data.name: folder)"
            raise Problem("colour image", path, "the image is in colour; expected grey", cure)
        notices.append("grey stored as RGB")
        return cast(MetaTensor, image[:1])
    return image


def check_file(path: Path) -> None:
    """Raise a Problem if a path is not a file, or has no supported format by its name."""
    if not path.is_file():  # to open a pipe would wait for another program to write to it
        found = "the file does not exist, or it is a folder, a pipe or a link that leads to no file"
        raise Problem("missing file", path, found, "add it, or remove this case from the dataset")
    if suffix(path) is None:
        found = f"this file format is not supported; expected {', '.join(SUFFIXES)}, or a folder of DICOM slices"
        raise Problem("file format that is not supported", path, found, "convert the file (DICOM with dcm2niix)")


def _check_finite(path: Path, image: MetaTensor) -> None:
    if all(map(torch.isfinite, image.as_tensor().aminmax())):
        return
    n_nan, n_infinite = int(image.isnan().sum()), int(image.isinf().sum())
    found = f"{n_nan:,} of {image.numel():,} voxels are NaN and {n_infinite:,} are infinite; expected finite numbers"
    raise Problem("values that are not finite", path, found, "repair the file, or replace these values by zeros")
