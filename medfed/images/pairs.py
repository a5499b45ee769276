"""Image and mask: the same size and position in space; a mask can be reordered, resampled, or joined with others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
import torch.nn.functional as F
from monai.data import MetaTensor
from monai.transforms import ResampleToMatch

from medfed.core.errors import Problem
from medfed.images import grids, reading

SPACING_TOLERANCE_MM = 1e-3
SHIFT_TOLERANCE = 0.1  # in voxels, between the corners of an image and its mask
MAX_ASPECT_CHANGE = 1.02  # ratio of the ratios of height and width of a 2-D image and its mask, to resample the mask


def check_pair(image_path: Path, image: MetaTensor, mask_path: Path, mask: MetaTensor, ignore_geometry: bool) -> None:
    """Raise a Problem if image (C, H, W, D) and mask (S, H, W, D) differ in shape, or in their place in space."""
    if image.shape[1:] != mask.shape[1:]:
        is_2d = mask.shape[-1] == image.shape[-1] == 1
        sizes = [_join(size[1:3] if is_2d else size[1:]) for size in (mask.shape, image.shape)]
        found = f"the mask has {sizes[0]} {'pixels' if is_2d else 'voxels'}, but its image {image_path} has {sizes[1]}"
        cure = "resample the mask by nearest neighbour, or set data.resample_masks: true (data.name: folder)"
        raise Problem("mask of another size", mask_path, f"{found}; expected equal numbers", cure)
    corners = np.array([[*corner, 1] for corner in np.ndindex(2, 2, 2)]) * [*(np.array(image.shape[1:]) - 1), 1]
    shift_mm = np.linalg.norm(corners @ (image.affine - mask.affine).numpy().T, axis=1).max()
    if not ignore_geometry and shift_mm > SHIFT_TOLERANCE * np.linalg.norm(image.affine[:3, :3].numpy(), axis=0).min():
        places = [
            f"{_join(np.linalg.norm(volume.affine[:3, :3].numpy(), axis=0).round(6))} mm along "
            + "".join(nib.aff2axcodes(volume.affine.numpy()))
            for volume in (mask, image)
        ]
        found = f"the mask, {places[0]}, lies up to {shift_mm:.3g} mm away from its image {image_path}, {places[1]}"
        cure = "resample the mask, or, if its voxels are those of the image, set data.ignore_mask_geometry: true; for "
        cure += "the masks of one site set it in data.by_site (data.name: folder)"
        raise Problem("mask in another position", mask_path, f"{found}; expected the same place", cure)


def check_kinds(image_path: Path, mask_path: Path) -> None:
    """Raise a Problem if only one of image and mask is a 2-D image file, whose axes have another order."""
    if (is_2d := reading.is_2d_image_file(mask_path)) != reading.is_2d_image_file(image_path):
        kinds = ("2-D image file", "volume") if is_2d else ("volume", "2-D image file")
        found = f"the mask is a {kinds[0]}, and its image {image_path} is a {kinds[1]}; expected files of the same kind"
        raise Problem("mask of another kind of file", mask_path, found, "convert one of them")


def resample_mask(image_path: Path, image: MetaTensor, mask_path: Path, mask: MetaTensor) -> MetaTensor:
    """Resample a mask (S, H, W, D) to its image by nearest neighbour: in space, or a 2-D one within the same field."""
    if reading.is_2d_image_file(image_path) and reading.is_2d_image_file(mask_path):
        ratio = image.shape[1] * mask.shape[2] / (image.shape[2] * mask.shape[1])
        if not 1 / MAX_ASPECT_CHANGE <= ratio <= MAX_ASPECT_CHANGE:
            found = (
                f"the mask has {_join(mask.shape[1:3])} pixels, but its image {image_path} has "
                f"{_join(image.shape[1:3])}; expected the same ratio of height and width"
            )
            raise Problem("mask with another ratio of height and width", mask_path, found, "crop or rotate one of them")
        flat = mask.as_tensor()[..., 0][None].float()
        resampled = F.interpolate(flat, size=tuple(image.shape[1:3]), mode="nearest-exact")[0][..., None]
        return _on_grid(image, resampled, mask)
    resample = ResampleToMatch(mode="nearest", padding_mode="zeros")
    resampled = resample(mask.float(), image).as_subclass(torch.Tensor).round()
    if mask.any() and not resampled.any():
        found = f"no part of the mask lies inside its image {image_path}; expected the same position in space"
        raise Problem("mask in another position", mask_path, found, "check the headers of both files")
    return _on_grid(image, resampled, mask)


def reorder_mask(image: MetaTensor, mask: MetaTensor, notices: list[str]) -> MetaTensor:
    """Exchange and reverse axes of a mask, as dcm2niix does, if it then has the voxels of its image; else keep it."""
    if np.allclose(mask.affine, image.affine, atol=SPACING_TOLERANCE_MM):
        return mask
    channels_last = np.moveaxis(mask.as_tensor().numpy(), 0, -1)
    reordered = grids.reorder_axes(channels_last, mask.affine.numpy(), image.affine.numpy())
    if reordered is None or reordered[0].shape[:3] != image.shape[1:] or reordered[1].any():
        return mask
    notices.append("axes of the mask reordered as in its image")
    return _on_grid(image, torch.from_numpy(np.moveaxis(reordered[0], -1, 0).copy()), mask)


def have_one_grid(masks: Sequence[MetaTensor]) -> bool:
    """Return whether masks (S, H, W, D) have the same shape, voxel size, orientation and position."""
    return all(
        mask.shape == masks[0].shape and np.allclose(mask.affine, masks[0].affine, atol=SPACING_TOLERANCE_MM)
        for mask in masks[1:]
    )


def join_masks(masks: Sequence[MetaTensor]) -> MetaTensor:
    """Join masks (S, H, W, D) of one image: a voxel belongs to a structure if it does so in one of them."""
    joined = reduce(torch.maximum, [mask.as_tensor() for mask in masks])
    values = sorted({value for mask in masks for value in mask.meta["label_values"]})
    return MetaTensor(joined, affine=masks[0].affine, meta={"label_values": values})


def _on_grid(image: MetaTensor, channels: torch.Tensor, mask: MetaTensor) -> MetaTensor:
    """Return the channels of a mask with the affine of its image; the values in the file are still those of `mask`."""
    return MetaTensor(channels.to(torch.uint8), affine=image.affine, meta={"label_values": mask.meta["label_values"]})


def _join(sizes: Sequence[float]) -> str:
    """Sizes as text, such as "384 x 384 x 24"."""
    return " x ".join(f"{float(size):g}" for size in sizes)
