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
from medfed.datasets import grids, image_files, volumes

SUFFIXES = (*volumes.SUFFIXES, *image_files.SUFFIXES)
SPACING_TOLERANCE_MM = 1e-3
MAX_ASPECT_CHANGE = 1.02  # ratio of the ratios of height and width of a 2-D image and its mask, to resample the mask
MAX_LABEL = 1 << 24  # float32 has all whole numbers up to this one
MAX_NOISE = 16  # value of a mask without foreground that was stored as JPEG
SHIFT_TOLERANCE = 0.1  # in voxels, between the corners of an image and its mask
_SET_WHITE = (
    "set data.intensity_max to the value that means white, such as 4095 for 12 bits or 65535 for 16, or save the image "
    "with 8 bits"
)


def suffix(path: Path) -> str | None:
    """Return the suffix of an image file's name in lower case, such as ".nii.gz".

    None means that the format is not supported.
    """
    name = path.name.lower()
    return next((ending for ending in SUFFIXES if name.endswith(ending)), None)


def is_2d_image_file(path: Path) -> bool:
    """Return whether a file is a 2-D image file (PNG, JPEG, BMP or TIFF) by the suffix of its name.

    The file is not opened.
    """
    return suffix(path) in image_files.SUFFIXES


def read_image(
    path: Path,
    channels: int,
    notices: list[str],
    *,
    intensity_max: float | None = None,
    grey_to_rgb: bool = False,
    suggest_keys: bool = False,
) -> MetaTensor:
    """Read an image file of any supported format.

    Args:
        path: file in NIfTI, MHA, MHD, NRRD, PNG, JPEG, BMP or TIFF format.
        channels: C, the expected number of channels. In a volume, the fourth axis of the file contains the channels.
        notices: short descriptions of conversions and unusual properties are appended to this list.
        intensity_max: the stored value that means white in 2-D images with more than 8 bits, such as 4095. None raises
            an error for such images.
        grey_to_rgb: what to do with a grey 2-D image if `channels` is 3: True repeats its channel three times, False
            raises an error.
        suggest_keys: whether error messages may recommend the config keys data.image_channels, data.intensity_max and
            data.grey_to_rgb, which not every dataset has.

    Returns:
        (C, H, W, D) float32, finite. 2-D images are scaled to [0, 255] and have D = 1; volumes keep their stored
        intensities.

    Raises:
        UserError: if the file is missing, empty or damaged, has an unsupported format or another number of channels, or
            contains NaN or infinite values.
    """
    check_exists(path)
    if is_2d_image_file(path):
        hint = _SET_WHITE if suggest_keys else f"save it as 8-bit {'RGB' if channels == 3 else 'grey'}"
        image = MetaTensor(torch.from_numpy(image_files.read_image_file(path, intensity_max, notices, hint))[..., None])
        image = _match_channels(path, image, channels, grey_to_rgb, suggest_keys, notices)
    else:
        image = volumes.read_volume(path)
        if image.shape[-1] == 1:
            notices.append("only one slice")
        notices += volumes.spacing_notices(spacing_mm(path, image) or ())
    return check_image(path, image, channels, notices, suggest_keys)


def check_image(
    path: Path, image: MetaTensor, channels: int, notices: list[str], suggest_keys: bool = False
) -> MetaTensor:
    """Check the number of channels and the intensities of an image, and return the image.

    Args:
        path: the image file, for the error message.
        image: (C, H, W, D) float32.
        channels: the expected number of channels C.
        notices: "constant image" is appended to this list if all voxels are equal.
        suggest_keys: whether error messages may recommend the config key data.image_channels.

    Raises:
        UserError: if the image has another number of channels, or contains NaN or infinite values.
    """
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
    """Read a mask file and return one channel of 0 and 1 per structure.

    Args:
        path: file in any format that `read_image` supports.
        labels: for every allowed value in the file, the names of the structures to which the value belongs, such as
            {0: (), 1: ("disc",), 2: ("disc", "cup")}. The value of the background belongs to no structure.
        structures: names of the S structures, in the order of the channels.
        notices: short descriptions of conversions and unusual properties are appended to this list.
        hint: advice to the user, with which the error message ends if the mask has other values. "" gives general
            advice.

    Returns:
        (S, H, W, D) uint8 of 0 and 1.

    Raises:
        UserError: if the file is missing, damaged, or has values that `labels` does not contain.
    """
    return to_structures(path, read_labels(path, notices), labels, structures, hint)


def read_labels(
    path: Path, notices: list[str], threshold: float | None = None, two_colours: bool = False, hint: str = ""
) -> MetaTensor:
    """Read the whole numbers that a mask file stores, without assigning them to structures.

    Args:
        path: file in any format that `read_image` supports.
        notices: short descriptions of conversions and unusual properties are appended to this list.
        threshold: for masks with soft edges: values above the threshold become 1, all other values 0. None keeps the
            stored values, which must be whole numbers. A mask that would lose its whole foreground is an error.
        two_colours: True reads a 2-D image file of exactly two colours, of which one is black, as the values 0 and 255.
        hint: advice to the user about the colours, with which the message ends if a 2-D image file stores a few.

    Returns:
        (1, H, W, D) float32 of whole numbers.

    Raises:
        UserError: if the file is missing or damaged, stores colours, or has fractional values although `threshold` is
            None.
    """
    check_exists(path)
    if is_2d_image_file(path):
        labels = image_files.read_label_file(path, notices, two_colours, hint)
        mask = MetaTensor(torch.from_numpy(labels)[None, ..., None])
    else:
        mask = volumes.read_volume(path)
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
    """Return the different values in a mask, in ascending order.

    Args:
        mask: whole numbers, of any shape and dtype.
    """
    values = mask.as_tensor().flatten() if isinstance(mask, MetaTensor) else mask.flatten()
    if values.numel() and 0 <= values.min() and values.max() < 1 << 16:
        return torch.bincount(values.int()).nonzero().flatten().tolist()
    return [int(value) for value in values.unique()]


def to_structures(
    path: Path, mask: MetaTensor, labels: Mapping[int, Sequence[str]], structures: Sequence[str], hint: str = ""
) -> MetaTensor:
    """Convert a mask of labels into one channel of 0 and 1 per structure.

    Args:
        path: path of the mask, for the error message.
        mask: (1, H, W, D) of whole numbers. It is not changed.
        labels: for every allowed value, the names of the structures to which the value belongs, such as {0: (), 1:
            ("disc",), 2: ("disc", "cup")}. The value of the background belongs to no structure. A value belongs to
            several structures if one of them lies inside another.
        structures: names of the S structures, in the order of the channels.
        hint: advice to the user, with which the error message ends if the mask has other values. "" gives general
            advice.

    Returns:
        (S, H, W, D) uint8 of 0 and 1, with the affine of `mask`. `meta["label_values"]` lists the values in `mask`.

    Raises:
        UserError: if the mask has a value that `labels` does not contain.
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
    """Return the voxel size of an image in mm, from its affine matrix.

    Args:
        path: path of the image file. Its suffix says whether it is a 2-D image file, which stores no size in mm.
        image: (C, H, W, D), read from this file, with its affine.

    Returns:
        The voxel size along H, W and D in mm; None for a 2-D image file.
    """
    if is_2d_image_file(path):
        return None
    height, width, depth = torch.linalg.vector_norm(image.affine[:3, :3], dim=0).tolist()
    return round(height, 6), round(width, 6), round(depth, 6)


def check_pair(
    image_path: Path, image: MetaTensor, mask_path: Path, mask: MetaTensor, ignore_geometry: bool, hint: str = ""
) -> None:
    """Check that an image and its mask have the same shape, voxel size, orientation and position.

    Args:
        image_path: path of the image, for the error message.
        image: (C, H, W, D) with its affine.
        mask_path: path of the mask, for the error message.
        mask: (S, H, W, D) with its affine.
        ignore_geometry: True compares only the shapes (H, W, D).
        hint: more advice to the user, with which the error message ends if the shapes differ.

    Raises:
        UserError: if image and mask differ. Differences of up to 0.001 mm in the voxel size, and of up to a tenth of a
            voxel in the position, are accepted.
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
    """Compare the sizes of an image and its mask by the headers of their files, before their pixels are read.

    The order of the axes is not compared, because it may change when the files are read. `check_pair` compares the
    volumes completely. A file whose header cannot be read is left to the functions that read it.

    Args:
        image_path: path of the image.
        mask_path: path of the mask.
        hint: more advice to the user, with which the error message ends.

    Raises:
        UserError: if the sizes differ, whatever the order of the axes.
    """
    sizes = [_stored_size(path) for path in (image_path, mask_path)]
    if all(sizes) and sorted(sizes[0]) != sorted(sizes[1]):
        raise _other_size(mask_path, sizes[1], image_path, sizes[0], hint)


def _stored_size(path: Path) -> tuple[int, ...]:
    """Return the three sizes of an image or mask by its header; an empty tuple if the header cannot be read."""
    if not path.is_file() or suffix(path) is None:
        return ()
    try:
        size = image_files.stored_size(path) if is_2d_image_file(path) else volumes.stored_size(path)
    except (OSError, ValueError, UserError, *image_files.READ_ERRORS, Image.DecompressionBombError):
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
    """Resample a mask to the voxel grid of its image, by nearest neighbour.

    A mask of a 2-D image file is resized: it is assumed to show the same field as its image. A volume is resampled in
    space, as the affines of both files say; outside the mask it is 0.

    Args:
        image_path: path of the image, for the error message.
        image: (C, H, W, D) with its affine.
        mask_path: path of the mask, for the error message.
        mask: (S, H, W, D) of 0 and 1 with its affine.

    Returns:
        (S, H, W, D) uint8 of 0 and 1 with the size and the affine of the image, and with the metadata of `mask`.

    Raises:
        UserError: if the height and width of a mask of a 2-D image file do not have the ratio of those of the image, up
            to 2 %, or if nothing of a volume's mask lies inside its image.
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
    """Join two masks of an image: a voxel belongs to a structure if it does so in one of them.

    Args:
        path, other_path: the files, for the error message.
        mask, other: (S, H, W, D) of 0 and 1.

    Raises:
        UserError: if the masks differ in shape or position.
    """
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

    Programs write the rows of a volume in different orders: dcm2niix reverses those of a DICOM series, for example.
    The affines of both files say which voxels coincide, so that nothing is interpolated.

    Args:
        image: (C, H, W, D) with its affine.
        mask: (S, H, W, D) of 0 and 1 with its affine.
        notices: a short description is appended to this list if the mask changes.
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
    """Return whole numbers as text, such as "0, 128, 255".

    If there are more than eight numbers, the text contains only the first eight, and says how many there are, such as
    "0, 1, 2, 3, 4, 5, 6, 7, ... (256 values)". The text for an empty list is "".
    """
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


def _match_channels(
    path: Path, image: MetaTensor, channels: int, grey_to_rgb: bool, suggest_keys: bool, notices: list[str]
) -> MetaTensor:
    """Convert a 2-D image between grey and RGB, if that is allowed and loses no information."""
    if len(image) == 1 and channels == 3:
        if not grey_to_rgb:
            hint = "set data.grey_to_rgb: true to repeat its channel three times" if suggest_keys else "save it as RGB"
            raise UserError(f"{path}: the image is grey; expected colour; {hint}")
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
    """Check that a file exists, is not empty, can be opened, and has a supported format by its name.

    Args:
        path: the image file or mask file.

    Raises:
        UserError: if one of these is not so.
    """
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
    """Raise UserError if an image contains NaN or infinite values."""
    if all(map(torch.isfinite, image.as_tensor().aminmax())):  # operations on a MetaTensor take longer
        return
    n_nan, n_infinite = int(image.isnan().sum()), int(image.isinf().sum())
    raise UserError(
        f"{path}: {n_nan:,} of {image.numel():,} voxels are NaN and {n_infinite:,} are infinite; expected finite "
        "numbers; repair the file, or replace these values by zeros"
    )


def _join(sizes: Sequence[float]) -> str:
    return " x ".join(f"{float(size):g}" for size in sizes)
