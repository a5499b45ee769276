"""Measures of a case: what its image and mask say, for the data check, for `medfed init` and for the survey."""

from __future__ import annotations

from dataclasses import dataclass

import nibabel as nib
import numpy as np
import torch
from monai.data import MetaTensor
from numpy.typing import NDArray
from torch import Tensor

from medfed.datasets.case import Case
from medfed.images import reading

PERCENTILES = (0.5, 50.0, 99.5)
MAX_SAMPLED_VOXELS = 100_000  # voxels of an image from which the percentiles are computed


@dataclass(frozen=True)
class StructureMeasures:
    """Where a structure lies in an image, and how large it is, in fractions of the image."""

    cover: float  # share of the image that it covers
    # The centre along each axis: right, front and up of a volume, or rows and columns; empty if the mask is empty.
    centre: tuple[float, ...]
    slice_covers: tuple[float, ...]  # share of each slice that shows it
    # 2 * area / perimeter in each of these slices: the width of a line, and 0.39 of the diameter of a disc.
    slice_widths: tuple[float, ...]


@dataclass(frozen=True)
class CaseMeasures:
    """What the image and the mask of one case say."""

    shape: tuple[int, ...]  # (H, W, D) in voxels
    spacing_mm: tuple[float, ...] | None  # along H, W, D; None if the file does not store it
    lowest: float  # intensity
    highest: float
    percentiles: tuple[float, ...]  # 0.5, 50 and 99.5 of the intensities
    orientation: str  # directions of the stored axes of a volume, such as "LPS"; "" for a 2-D image
    structures: tuple[StructureMeasures, ...]  # empty for classification


def measure_case(case: Case, image: MetaTensor, mask: MetaTensor | None) -> CaseMeasures:
    """Return the measures of a case, given its image (C, H, W, D) as read, and its mask (S, H, W, D) of 0 and 1."""
    voxels = image.numpy().ravel()
    sampled = np.percentile(voxels[:: max(1, len(voxels) // MAX_SAMPLED_VOXELS)], PERCENTILES)
    spacing_mm = reading.spacing_mm(case.image, image)
    codes = nib.orientations.aff2axcodes(image.affine.numpy()) if spacing_mm else ()
    orientation = "" if None in codes else "".join(codes)
    return CaseMeasures(
        tuple(image.shape[1:]),
        spacing_mm,
        float(voxels.min()),
        float(voxels.max()),
        tuple(map(float, sampled)),
        orientation,
        () if mask is None else tuple(_measure_structure(channel, orientation) for channel in mask.as_tensor()),
    )


def _measure_structure(mask: Tensor, orientation: str) -> StructureMeasures:
    """Return the measures of a structure, given its mask (H, W, D) of 0 and 1."""
    slices = torch.nn.functional.pad(mask.movedim(-1, 0).bool(), (1, 1, 1, 1))
    area = slices.sum((1, 2)).double()
    edges = (slices[:, 1:] != slices[:, :-1]).sum((1, 2)) + (slices[:, :, 1:] != slices[:, :, :-1]).sum((1, 2))
    shown, (height, width) = area > 0, mask.shape[:2]
    widths = 2 * area[shown] / edges[shown] / (height * width) ** 0.5
    return StructureMeasures(
        float(mask.count_nonzero() / mask.numel()),
        _centre(mask.numpy(), orientation),
        tuple((area[shown] / (height * width)).tolist()),
        tuple(widths.tolist()),
    )


def _centre(mask: NDArray[np.uint8], orientation: str) -> tuple[float, ...]:
    """Return the centre of a mask (H, W, D) along the right, anterior and superior axis; rows and columns if 2-D."""
    if not mask.any():
        return ()
    centre = {}
    for axis, direction in enumerate(orientation or "RA"):
        profile = mask.sum(axis=tuple({0, 1, 2} - {axis}), dtype=np.int64)
        position = float(((np.arange(len(profile)) + 0.5) * profile).sum() / profile.sum() / len(profile))
        centre["RAS".index(direction) if direction in "RAS" else "LPI".index(direction)] = (
            position if direction in "RAS" else 1 - position
        )
    return tuple(centre[axis] for axis in sorted(centre))
