"""Reading one image or one mask of any supported kind, with every check that one file allows.

What a file does wrong is a UserError that names it. What was changed or looks odd is a notice: a clause appended to the
caller's list, the same words for every file, so that a report can count them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import nibabel as nib
import numpy as np
import torch
from monai.data import MetaTensor
from torch import Tensor

from medfed.core.errors import UserError
from medfed.datasets import image_files, volumes

SUFFIXES = (*volumes.SUFFIXES, *image_files.SUFFIXES)
SPACING_TOLERANCE_MM = 1e-3
SHIFT_TOLERANCE = 0.1  # of a voxel, at the corner where an image and its mask lie farthest apart
_DECLARE_WHITE = (
    "say which value is white with data.intensity_max, such as 4095 for 12 bits or 65535 for 16, or save it with 8 bits"
)


def suffix(path: Path) -> str | None:
    """The supported ending of a file's name, in lower case; None if it has none."""
    return next((ending for ending in SUFFIXES if path.name.lower().endswith(ending)), None)


def is_2d_image_file(path: Path) -> bool:
    """Whether the file is a picture, which does not tell its size in millimetres."""
    return suffix(path) in image_files.SUFFIXES


def read_image(
    path: Path,
    channels: int,
    notices: list[str],
    *,
    intensity_max: float | None = None,
    grey_to_rgb: bool = False,
    declared: bool = False,
) -> MetaTensor:
    """(C, H, W, D) float32, finite; pictures on the scale 0 to 255 and with D = 1, volumes as stored.

    Args:
        path: NIfTI, MHA, MHD, NRRD, PNG, JPEG, BMP or TIFF.
        channels: how many the dataset has; a volume's are its fourth axis.
        notices: gets a clause for everything odd.
        intensity_max: the stored value that means white in pictures of more than 8 bits.
        grey_to_rgb: repeat the one channel of a grey picture where `channels` is 3.
        declared: whether the user declares the images, with data.image_channels, .intensity_max and .grey_to_rgb, so
            that messages may advise these keys.

    Raises:
        UserError: if the file is missing, empty, damaged or of another kind, or holds NaN, or other channels.
    """
    _check_exists(path)
    if is_2d_image_file(path):
        hint = _DECLARE_WHITE if declared else f"save it as 8-bit {'RGB' if channels == 3 else 'grey'}"
        image = MetaTensor(torch.from_numpy(image_files.read_image_file(path, intensity_max, notices, hint))[..., None])
        image = _fit_picture(path, image, channels, grey_to_rgb, declared, notices)
    else:
        image = volumes.read_volume(path)
        if image.shape[-1] == 1:
            notices.append("only one slice")
    if len(image) != channels:
        hint = ", or declare them with data.image_channels" if declared else ""
        raise UserError(
            f"{path}: has {len(image)} values a voxel (a fourth axis), expected {channels}; "
            f"keep one volume of them{hint}"
        )
    _check_finite(path, image)
    if image.min() == image.max():
        notices.append("constant image")
    return image


def read_mask(
    path: Path, labels: Mapping[int, Sequence[str]], structures: Sequence[str], notices: list[str], hint: str = ""
) -> MetaTensor:
    """(S, H, W, D) uint8 of 0 and 1, a channel a structure, as `read_labels` and `to_structures` make it."""
    return to_structures(path, read_labels(path, notices), labels, structures, hint)


def read_labels(path: Path, notices: list[str], threshold: float | None = None) -> MetaTensor:
    """(1, H, W, D) of whole numbers: a mask as stored.

    Args:
        path: as for `read_image`.
        notices: gets a clause for everything odd.
        threshold: makes 1 of what is above it and 0 of the rest, for masks with soft edges.

    Raises:
        UserError: if the file is missing, damaged, in colours, or has fractional values (and no `threshold`).
    """
    _check_exists(path)
    if is_2d_image_file(path):
        mask = MetaTensor(torch.from_numpy(image_files.read_label_file(path, notices))[None, ..., None])
    else:
        mask = volumes.read_volume(path)
    if len(mask) > 1:
        raise UserError(f"{path}: has {len(mask)} values a voxel; expected one label a voxel, so write the mask again")
    _check_finite(path, mask)
    if threshold is not None:
        return cast(MetaTensor, (mask > threshold).to(torch.float32))
    fractional = mask != mask.round()
    if fractional.any():
        raise UserError(
            f"{path}: has fractional labels such as {float(mask[fractional][0]):g} in {int(fractional.sum()):,} of "
            f"{mask.numel():,} voxels; a mask holds whole numbers, so resample it with nearest neighbour"
        )
    return mask


def label_values(mask: Tensor) -> list[int]:
    """The whole numbers in a mask, ascending."""
    values = mask.as_tensor().flatten() if isinstance(mask, MetaTensor) else mask.flatten()
    if values.numel() and 0 <= values.min() and values.max() < 1 << 16:
        return torch.bincount(values.int()).nonzero().flatten().tolist()
    return [int(value) for value in values.unique()]


def to_structures(
    path: Path, mask: MetaTensor, labels: Mapping[int, Sequence[str]], structures: Sequence[str], hint: str = ""
) -> MetaTensor:
    """Turn stored labels into one channel a structure; the labels found are noted in `meta["label_values"]`.

    Args:
        path: for messages.
        mask: (1, H, W, D) of whole numbers.
        labels: every allowed value, with the structures that it belongs to: none for the background, several where
            structures lie within each other.
        structures: their order in the result.
        hint: what to try when there are other values.

    Returns:
        (S, H, W, D) uint8 of 0 and 1.

    Raises:
        UserError: if the mask has a value that `labels` does not name.
    """
    found = label_values(mask)
    if not set(found) <= set(labels):
        expected = ", ".join(f"{value} ({' and '.join(labels[value]) or 'background'})" for value in sorted(labels))
        hint = hint or "write the mask again with these"
        raise UserError(f"{path}: has the labels {few(found)}; expected {expected}; {hint}")
    channels = torch.zeros(len(structures), *mask.shape[1:], dtype=torch.uint8)
    for index, structure in enumerate(structures):
        for value in found:
            if structure in labels[value]:
                channels[index] |= mask.as_tensor()[0] == value
    return MetaTensor(channels, affine=mask.affine, meta={"label_values": found})


def spacing_mm(path: Path, image: MetaTensor) -> tuple[float, float, float] | None:
    """Voxel size along H, W, D; None for a picture."""
    if is_2d_image_file(path):
        return None
    height, width, depth = torch.linalg.vector_norm(image.affine[:3, :3], dim=0).tolist()
    return round(height, 6), round(width, 6), round(depth, 6)


def check_pair(image_path: Path, image: MetaTensor, mask_path: Path, mask: MetaTensor, ignore_geometry: bool) -> None:
    """Raise UserError unless mask and image have the same voxels, and (but for `ignore_geometry`) in the same place."""
    if image.shape[1:] != mask.shape[1:]:
        raise UserError(
            f"{mask_path}: has {_by(mask.shape[1:])} voxels, but its image {image_path} has {_by(image.shape[1:])}; "
            "expected the same, so resample the mask to its image by nearest neighbour"
        )
    difference = _geometry_difference(image, mask)
    if difference and not ignore_geometry:
        raise UserError(
            f"{mask_path}: {difference} of its image {image_path}; resample it to its image, or set "
            "data.ignore_mask_geometry: true if their voxels correspond one to one"
        )


def few(values: Sequence[int]) -> str:
    """Values in words, the first eight of many."""
    listed = ", ".join(map(str, values[:8]))
    return f"{listed}, ... ({len(values)} values)" if len(values) > 8 else listed


def _geometry_difference(image: MetaTensor, mask: MetaTensor) -> str:
    """What a mask's place in space is not, or nothing."""
    spacing, mask_spacing = (np.linalg.norm(one.affine[:3, :3].numpy(), axis=0) for one in (image, mask))
    if np.abs(spacing - mask_spacing).max() > SPACING_TOLERANCE_MM:
        return f"has voxels of {_by(mask_spacing)} mm, not the {_by(spacing)} mm"
    directions = image.affine[:3, :3].numpy() / spacing, mask.affine[:3, :3].numpy() / mask_spacing
    cosine = np.sum(directions[0] * directions[1], axis=0).min()
    if cosine < 0.5:
        towards, mask_towards = ("".join(nib.aff2axcodes(one.affine.numpy())) for one in (image, mask))
        angle = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
        return f"has its axes towards {mask_towards}, up to {angle:.0f} degrees from the {towards}"
    corners = np.array([[*corner, 1] for corner in np.ndindex(2, 2, 2)]) * [*(np.array(image.shape[1:]) - 1), 1]
    shift_mm = np.linalg.norm(corners @ (image.affine - mask.affine).numpy().T, axis=1).max()
    return f"lies up to {shift_mm:.3g} mm from the place" if shift_mm > SHIFT_TOLERANCE * spacing.min() else ""


def _fit_picture(
    path: Path, image: MetaTensor, channels: int, grey_to_rgb: bool, declared: bool, notices: list[str]
) -> MetaTensor:
    """Between grey and colour, as far as that loses nothing."""
    if len(image) == 1 and channels == 3:
        if not grey_to_rgb:
            hint = "set data.grey_to_rgb: true to repeat its one channel three times" if declared else "save it as RGB"
            raise UserError(f"{path}: is grey, expected colour; {hint}")
        notices.append("grey repeated as RGB")
        return cast(MetaTensor, image.repeat(3, 1, 1, 1))
    if len(image) == 3 and channels == 1:
        if not bool((image == image[:1]).all()):
            hint = "set data.image_channels: 3, or save it as grey" if declared else "save it as grey"
            raise UserError(f"{path}: is in colour, expected grey; {hint}")
        notices.append("grey stored as RGB")
        return cast(MetaTensor, image[:1])
    return image


def _check_exists(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{path}: is missing; expected a file, so copy it there or remove its partner")
    try:
        with open(path, "rb") as file:
            start = file.read(132)
    except OSError as error:
        raise UserError(f"{path}: cannot be opened ({error.strerror}); check who may read it") from None
    if not start:
        raise UserError(f"{path}: is empty (0 bytes); copy it again from its source")
    if start[128:] == b"DICM":
        raise UserError(f"{path}: is DICOM; expected one file a volume, so convert the series to NIfTI (with dcm2niix)")
    if suffix(path) is None:
        raise UserError(f"{path}: is of an unknown kind; expected one of {', '.join(SUFFIXES)}")


def _check_finite(path: Path, image: MetaTensor) -> None:
    if bool(image.isfinite().all()):
        return
    n_nan, n_infinite = int(image.isnan().sum()), int(image.isinf().sum())
    raise UserError(
        f"{path}: {n_nan:,} of {image.numel():,} voxels are NaN and {n_infinite:,} infinite; expected numbers "
        "everywhere, so repair the file or write zeros there"
    )


def _by(sizes: Sequence[float]) -> str:
    return " x ".join(f"{float(size):g}" for size in sizes)
