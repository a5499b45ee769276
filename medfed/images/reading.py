"""Read one image or one mask of any supported file format, and check it.

A problem with a file raises a UserError with the path of the file. Conversions and unusual properties are notices:
short descriptions that are appended to a list of the caller, with the same text for every file, so that a report can
count them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import nibabel as nib
import numpy as np
import torch
import torch.nn.functional as F
from monai.data import MetaTensor
from monai.transforms import ResampleToMatch
from PIL import Image
from torch import Tensor

from medfed.core.errors import UserError
from medfed.images import grids, nifti, two_dimensional

SUFFIXES = (*nifti.SUFFIXES, *two_dimensional.SUFFIXES)
SPACING_TOLERANCE_MM = 1e-3
MAX_ASPECT_CHANGE = 1.02  # ratio of the ratios of height and width of a 2-D image and its mask, to resample the mask
MAX_LABEL = 1 << 24  # float32 has all whole numbers up to this one
MAX_NOISE = 16  # value of a mask without foreground that was stored as JPEG
SHIFT_TOLERANCE = 0.1  # in voxels, between the corners of an image and its mask
_SET_WHITE = (
    "set data.intensity_max to the value that means white, such as 4095 for 12 bits or 65535 for 16, or save the image "
    "with 8 bits"
)


def suffix(path: Path | str) -> str | None:
    """Return the suffix of an image file's name in lower case, such as ".nii.gz"; None if it is not supported."""
    name = str(path).lower()
    return next((ending for ending in SUFFIXES if name.endswith(ending)), None)


def is_2d_image_file(path: Path | str) -> bool:
    """Return whether a file is a 2-D image file (PNG, JPEG, BMP or TIFF) by the suffix of its name."""
    return suffix(path) in two_dimensional.SUFFIXES


def read_image(
    path: Path,
    channels: int,
    notices: list[str],
    *,
    intensity_max: float | None = None,
    suggest_keys: bool = False,
) -> MetaTensor:
    """Read an image file of any supported format: (C, H, W, D) float32, finite.

    2-D images are scaled to [0, 255] and have D = 1; volumes keep their stored intensities.

    Args:
        path: file in NIfTI, MHA, MHD, NRRD, PNG, JPEG, BMP or TIFF format.
        channels: C. In a volume, the fourth axis of the file contains the channels.
        notices: short descriptions of conversions and unusual properties are appended to this list.
        intensity_max: the stored value that means white in 2-D images with more than 8 bits; None refuses such images.
        suggest_keys: whether messages may recommend the settings of these arguments, which not every dataset has.
    """
    check_exists(path)
    if is_2d_image_file(path):
        hint = _SET_WHITE if suggest_keys else f"save it as 8-bit {'RGB' if channels == 3 else 'grey'}"
        image = MetaTensor(
            torch.from_numpy(two_dimensional.read_image_file(path, intensity_max, notices, hint))[..., None]
        )
        image = _match_channels(path, image, channels, suggest_keys, notices)
    else:
        image = nifti.read_volume(path)
        if image.shape[-1] == 1:
            notices.append("only one slice")
        notices += nifti.spacing_notices(spacing_mm(path, image) or ())
    return check_image(path, image, channels, notices, suggest_keys)


def check_image(
    path: Path, image: MetaTensor, channels: int, notices: list[str], suggest_keys: bool = False
) -> MetaTensor:
    """Check that an image has C = `channels` and is finite, and return it; "constant image" is added to `notices`."""
    if len(image) != channels:
        hint = ", or set data.image_channels" if suggest_keys else ""
        raise UserError(
            f"{path}: the file contains {len(image)} volumes (along its fourth axis), expected {channels}; keep only "
            f"one of these volumes{hint}"
        )
    _check_finite(path, image)
    low, high = image.as_tensor().aminmax()
    if low == high:
        notices.append("constant image")
    return image


def read_mask(
    path: Path, labels: Mapping[int, Sequence[str]], structures: Sequence[str], notices: list[str], hint: str = ""
) -> MetaTensor:
    """Read a mask file and return one channel of 0 and 1 per structure, (S, H, W, D) uint8; arguments as in
    `to_structures`."""
    return to_structures(path, read_labels(path, notices), labels, structures, hint)


def read_labels(
    path: Path, notices: list[str], threshold: float | None = None, two_colours: bool = False, hint: str = ""
) -> MetaTensor:
    """Read the whole numbers that a mask file stores, (1, H, W, D) float32, without assigning them to structures.

    Args:
        path: file in any format that `read_image` supports.
        notices: short descriptions of conversions and unusual properties are appended to this list.
        threshold: for masks with soft edges: values above it become 1, all others 0. None refuses fractional values.
        two_colours: True reads a 2-D image file of exactly two colours, of which one is black, as the values 0 and 255.
        hint: advice about the colours, with which the message ends if a 2-D image file stores a few.
    """
    check_exists(path)
    if is_2d_image_file(path):
        labels = two_dimensional.read_label_file(path, notices, two_colours, hint)
        mask = MetaTensor(torch.from_numpy(labels)[None, ..., None])
    else:
        mask = nifti.read_volume(path)
    if len(mask) > 1:
        is_slicer = path.name.lower().endswith(".seg.nrrd")
        raise UserError(
            f"{path}: the mask has {len(mask)} values per voxel; expected one label per voxel; write the mask again "
            "with a single channel" + (" (in 3D Slicer, export the segmentation as a labelmap)" if is_slicer else "")
        )
    _check_finite(path, mask)
    largest = float(mask.as_tensor().abs().max())
    if largest >= MAX_LABEL:
        raise UserError(
            f"{path}: the mask has labels up to {largest:g}; expected whole numbers below {MAX_LABEL:,}, which are "
            "stored exactly; write the mask again with 0 for the background and 1, 2, ... for the structures"
        )
    if threshold is not None:
        _check_threshold(path, mask, threshold)
        return cast(MetaTensor, (mask > threshold).to(torch.float32))
    fractional = mask != mask.round()
    if fractional.any():
        raise UserError(
            f"{path}: the mask has fractional labels such as {float(mask[fractional][0]):g} in "
            f"{int(fractional.sum()):,} of {mask.numel():,} voxels; expected whole numbers; resample the mask with "
            "nearest-neighbour interpolation"
        )
    return mask


def _check_threshold(path: Path, mask: Tensor, threshold: float) -> None:
    """Raise UserError if no value of a mask is above the threshold, although it has more than noise of compression."""
    largest = float(mask.max())
    is_noise = path.suffix.lower() in (".jpg", ".jpeg") and largest <= MAX_NOISE
    if 0 < largest <= threshold and not is_noise:
        raise UserError(
            f"{path}: data.mask_threshold is {threshold:g}, but the largest value of the mask is {largest:g}, so the "
            "mask would lose its foreground; expected values above the threshold; decrease data.mask_threshold, or "
            "write the mask again with 255 for the structure"
        )


def label_values(mask: Tensor) -> list[int]:
    """Return the different values of a mask of whole numbers, in ascending order."""
    values = mask.as_tensor().flatten() if isinstance(mask, MetaTensor) else mask.flatten()
    if values.numel() and 0 <= values.min() and values.max() < 1 << 16:
        return torch.bincount(values.int()).nonzero().flatten().tolist()
    return [int(value) for value in values.unique()]


def to_structures(
    path: Path, mask: MetaTensor, labels: Mapping[int, Sequence[str]], structures: Sequence[str], hint: str = ""
) -> MetaTensor:
    """Convert a mask of labels, (1, H, W, D), into one channel of 0 and 1 per structure, (S, H, W, D) uint8.

    `labels` has the names of the structures to which each allowed value belongs, such as {0: (), 1: ("disc",), 2:
    ("disc", "cup")}: none for the background, several if one lies inside another. `meta["label_values"]` of the result
    lists the values in the mask. `hint` is advice for the message about a value that `labels` lacks.
    """
    values = label_values(mask)
    if not set(values) <= set(labels):
        expected = ", ".join(f"{value} ({' and '.join(labels[value]) or 'background'})" for value in sorted(labels))
        hint = hint or "write the mask again with these values"
        raise UserError(f"{path}: the mask has the labels {format_values(values)}; expected {expected}; {hint}")
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


def check_pair(
    image_path: Path, image: MetaTensor, mask_path: Path, mask: MetaTensor, ignore_geometry: bool, hint: str = ""
) -> None:
    """Raise UserError if image (C, H, W, D) and mask (S, H, W, D) differ in shape, voxel size, orientation or position.

    Differences of up to 0.001 mm in the voxel size, and of a tenth of a voxel in the position, are accepted.
    `ignore_geometry` compares only the shapes.
    """
    if image.shape[1:] != mask.shape[1:]:
        raise _other_size(mask_path, mask.shape[1:], image_path, image.shape[1:], hint)
    difference = _geometry_difference(image, mask)
    if difference and not ignore_geometry:
        raise UserError(
            f"{mask_path}: {difference} of its image {image_path}; resample the mask to the image, or set "
            "data.ignore_mask_geometry: true if the voxels of mask and image correspond one to one"
        )


def check_stored_sizes(image_path: Path, mask_path: Path, hint: str = "") -> None:
    """Raise UserError if image and mask differ in size by the headers of their files, before their pixels are read.

    The order of the axes is not compared, because it may change when the files are read. Damaged headers are ignored.
    """
    sizes = [_stored_size(path) for path in (image_path, mask_path)]
    if all(sizes) and sorted(sizes[0]) != sorted(sizes[1]):
        raise _other_size(mask_path, sizes[1], image_path, sizes[0], hint)


def _stored_size(path: Path) -> tuple[int, ...]:
    """Return the three sizes of an image or mask by its header; an empty tuple if the header cannot be read."""
    if not path.is_file() or suffix(path) is None:
        return ()
    try:
        size = two_dimensional.stored_size(path) if is_2d_image_file(path) else nifti.stored_size(path)
    except (OSError, ValueError, UserError, *two_dimensional.READ_ERRORS, Image.DecompressionBombError):
        return ()
    return (*size, 1, 1, 1)[:3]


def _other_size(
    mask_path: Path, mask_size: Sequence[int], image_path: Path, image_size: Sequence[int], hint: str
) -> UserError:
    return UserError(
        f"{mask_path}: the mask has {_join(mask_size)} voxels, but its image {image_path} has {_join(image_size)}; "
        f"expected equal numbers; resample the mask to the image with nearest-neighbour interpolation{hint}"
    )


def resample_mask(image_path: Path, image: MetaTensor, mask_path: Path, mask: MetaTensor) -> MetaTensor:
    """Resample a mask (S, H, W, D) of 0 and 1 to the voxel grid of its image (C, H, W, D), by nearest neighbour.

    A volume is resampled in space, by the affines of both files; a 2-D mask is assumed to show the same field as its
    image. UserError if 2-D sizes differ in their ratio by more than 2 %, or if no part of a volume's mask lies inside
    its image.
    """
    if is_2d_image_file(image_path) and is_2d_image_file(mask_path):
        ratio = image.shape[1] * mask.shape[2] / (image.shape[2] * mask.shape[1])
        if not 1 / MAX_ASPECT_CHANGE <= ratio <= MAX_ASPECT_CHANGE:
            raise UserError(
                f"{mask_path}: the mask has {_join(mask.shape[1:3])} pixels, but its image {image_path} has "
                f"{_join(image.shape[1:3])}, which is another ratio of height and width; expected the same field; crop "
                "or rotate one of them"
            )
        flat = mask.as_tensor()[..., 0][None].float()
        resized = F.interpolate(flat, size=tuple(image.shape[1:3]), mode="nearest-exact")[0][..., None]
        return MetaTensor(resized.to(torch.uint8), affine=image.affine, meta=_values_of(mask))
    resampled = torch.as_tensor(ResampleToMatch(mode="nearest", padding_mode="zeros")(mask.float(), image)).round()
    if mask.any() and not resampled.any():
        raise UserError(
            f"{mask_path}: no part of the mask lies inside its image {image_path}; expected the same position in "
            "space; check the headers of both files"
        )
    return MetaTensor(_plain(resampled).to(torch.uint8), affine=image.affine, meta=_values_of(mask))


def join_masks(path: Path, mask: MetaTensor, other_path: Path, other: MetaTensor) -> MetaTensor:
    """Join two masks (S, H, W, D) of an image: a voxel belongs to a structure if it does so in one of them."""
    if mask.shape != other.shape or not np.allclose(mask.affine.numpy(), other.affine.numpy(), atol=1e-3):
        raise UserError(
            f"{other_path}: the mask has {_join(other.shape[1:])} voxels, and {path.name} of the same image has "
            f"{_join(mask.shape[1:])}, or lies elsewhere; expected the same grid to join them; resample one of them"
        )
    joined = torch.maximum(_plain(mask), _plain(other))
    values = sorted({*mask.meta["label_values"], *other.meta["label_values"]})
    return MetaTensor(joined, affine=mask.affine, meta={"label_values": values})


def reorder_mask(image: MetaTensor, mask: MetaTensor, notices: list[str]) -> MetaTensor:
    """Exchange and reverse the axes of a mask if it then has the voxels of its image; else return it unchanged.

    Programs write the rows of a volume in different orders; dcm2niix reverses those of DICOM. Nothing is interpolated.
    """
    grid = image.affine.numpy()
    if np.allclose(mask.affine.numpy(), grid, atol=SPACING_TOLERANCE_MM):
        return mask
    reordered = grids.reorder_axes(_plain(mask).numpy(), mask.affine.numpy(), tuple(image.shape[1:]), grid)
    if reordered is None:
        return mask
    notices.append("axes of the mask reordered as in its image")
    return MetaTensor(torch.from_numpy(reordered.copy()), affine=image.affine, meta=_values_of(mask))


def format_values(values: Sequence[int]) -> str:
    """Return whole numbers as text, such as "0, 128, 255"; of more than eight, the first eight and the count."""
    listed = ", ".join(map(str, values[:8]))
    return f"{listed}, ... ({len(values)} values)" if len(values) > 8 else listed


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor without metadata."""
    return tensor.as_tensor() if isinstance(tensor, MetaTensor) else tensor


def _values_of(mask: MetaTensor) -> dict[str, object]:
    """Return the metadata of a mask that do not depend on its voxel grid: the values in its file."""
    return {"label_values": mask.meta["label_values"]}


def _geometry_difference(image: MetaTensor, mask: MetaTensor) -> str:
    """Return how the position of a mask in space differs from that of its image, as a clause; "" if it does not."""
    spacing, mask_spacing = (np.linalg.norm(volume.affine[:3, :3].numpy(), axis=0) for volume in (image, mask))
    if np.abs(spacing - mask_spacing).max() > SPACING_TOLERANCE_MM:
        return f"the mask's voxel size is {_join(mask_spacing)} mm, not the {_join(spacing)} mm"
    directions = image.affine[:3, :3].numpy() / spacing, mask.affine[:3, :3].numpy() / mask_spacing
    cosine = np.sum(directions[0] * directions[1], axis=0).min()
    if cosine < 0.5:
        codes, mask_codes = ("".join(nib.aff2axcodes(volume.affine.numpy())) for volume in (image, mask))
        angle = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
        return f"the mask's axes point to {mask_codes}, up to {angle:.0f} degrees away from the axes {codes}"
    corners = np.array([[*corner, 1] for corner in np.ndindex(2, 2, 2)]) * [*(np.array(image.shape[1:]) - 1), 1]
    shift_mm = np.linalg.norm(corners @ (image.affine - mask.affine).numpy().T, axis=1).max()
    if shift_mm <= SHIFT_TOLERANCE * spacing.min():
        return ""
    return f"the mask lies up to {shift_mm:.3g} mm away from the position"


def _match_channels(path: Path, image: MetaTensor, channels: int, suggest_keys: bool, notices: list[str]) -> MetaTensor:
    """Convert a 2-D image between grey and RGB, if that is allowed and loses no information."""
    if len(image) == 1 and channels == 3:
        notices.append("grey repeated as RGB")
        return cast(MetaTensor, image.repeat(3, 1, 1, 1))
    if len(image) == 3 and channels == 1:
        if not bool((image == image[:1]).all()):
            hint = "set data.image_channels: 3, or save it as grey" if suggest_keys else "save it as grey"
            raise UserError(f"{path}: the image is in colour; expected grey; {hint}")
        notices.append("grey stored as RGB")
        return cast(MetaTensor, image[:1])
    return image


def check_exists(path: Path) -> None:
    """Raise UserError if a path is not a file, is empty, cannot be opened, or has no supported format by its name."""
    if not path.is_file():
        if os.path.lexists(path):
            kind = "a link that leads to no file" if path.is_symlink() else "a folder, a pipe or a device"
            raise UserError(f"{path}: this is {kind}; expected a file; replace or remove it")
        raise UserError(f"{path}: the file does not exist; add it, or remove this case from the dataset")
    try:
        with open(path, "rb") as file:
            start = file.read(132)
    except OSError as error:
        raise UserError(f"{path}: cannot open the file ({error.strerror}); check its permissions") from None
    if not start:
        raise UserError(f"{path}: the file is empty (0 bytes); copy it again from its source")
    if start[128:] == b"DICM":
        raise UserError(
            f"{path}: this is a DICOM file; expected one file per volume; put "
            "the files of its series into a folder, or convert them to NIfTI (with dcm2niix)"
        )
    if suffix(path) is None:
        raise UserError(
            f"{path}: this file format is not supported; expected one of {', '.join(SUFFIXES)}; convert the file"
        )


def _check_finite(path: Path, image: MetaTensor) -> None:
    if all(map(torch.isfinite, image.as_tensor().aminmax())):  # operations on a MetaTensor take longer
        return
    n_nan, n_infinite = int(image.isnan().sum()), int(image.isinf().sum())
    raise UserError(
        f"{path}: {n_nan:,} of {image.numel():,} voxels are NaN and {n_infinite:,} are infinite; expected finite "
        "numbers; repair the file, or replace these values by zeros"
    )


def _join(sizes: Sequence[float]) -> str:
    """Sizes as text, such as "384 x 384 x 24"."""
    return " x ".join(f"{float(size):g}" for size in sizes)
