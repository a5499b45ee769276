"""Read masks from DICOM SEG objects with highdicom, on the voxel grid of the image that they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor

from medfed.core.errors import UserError
from medfed.images.dicom import LPS_TO_RAS
from medfed.images.grids import voxel_mapping


@dataclass(frozen=True)
class Grid:
    """The voxel grid (H, W, D) of the image at `path`; the affine, (4, 4), maps voxel indices to millimetres, RAS.

    `frame_of_reference` is FrameOfReferenceUID of a DICOM image; "" if it is not known.
    """

    path: Path
    shape: tuple[int, ...]
    affine: np.ndarray
    frame_of_reference: str = ""


def read_segmentation(
    path: Path, grid: Grid, structures: Sequence[str], values: Mapping[str, Sequence[int]], notices: list[str]
) -> MetaTensor:
    """Read the segments of a DICOM SEG object as one channel of 0 and 1 per structure: (S, H, W, D) uint8 on the grid.

    A segment belongs to the structure for which `values` lists its number. If `values` is empty, it belongs to the
    structure that has its label as name; if no label is the name of a structure, the segments 1, 2, ... are the
    structures in their order, and the only segment is the only structure. `notices` says if segments belong to none.

    The frames of the object must lie on voxels of the grid; nothing is interpolated. `meta["label_values"]` of the
    result lists the numbers of the segments, and 0.
    """
    segmentation, frames = _open(path)
    if grid.frame_of_reference not in ("", str(segmentation.get("FrameOfReferenceUID", grid.frame_of_reference))):
        raise UserError(
            f"{path}: the DICOM SEG was drawn in another frame of reference than its image {grid.path}; expected the "
            "same scan; choose the series that it was drawn on (data.dicom_series)"
        )
    labels = {
        int(segment.SegmentNumber): str(segment.SegmentLabel)
        for segment in segmentation.SegmentSequence
        if int(segment.SegmentNumber)
    }
    numbers = _assign(path, labels, structures, values, notices)
    channels = np.zeros((len(structures), *grid.shape), dtype=np.uint8)
    for functions, pixels in zip(segmentation.PerFrameFunctionalGroupsSequence, frames, strict=True):
        indices = _frame_indices(path, segmentation, functions, pixels.shape, grid)
        for channel, structure in zip(channels, structures):
            voxels = indices[:, _marks(segmentation, functions, pixels, numbers[structure])]
            if ((voxels < 0) | (voxels >= np.array(grid.shape)[:, None])).any():
                raise _elsewhere(path, grid)
            channel[tuple(voxels)] = 1
    return MetaTensor(
        torch.from_numpy(channels), affine=torch.from_numpy(grid.affine), meta={"label_values": [0, *sorted(labels)]}
    )


def _open(path: Path) -> tuple[Any, np.ndarray]:
    """Return highdicom's object and its frames, (N, rows, columns)."""
    try:
        import highdicom
    except ImportError:
        raise UserError(
            f"{path}: this is a DICOM SEG object, and highdicom, which reads it, is not installed; run pip install "
            "'medfed[dicom]', or convert the mask to NIfTI"
        ) from None
    try:
        segmentation = highdicom.seg.segread(path)
        frames = np.asarray(segmentation.pixel_array)
    except Exception as error:  # pydicom and highdicom raise many types of errors for damaged files
        raise UserError(
            f"{path}: highdicom cannot read this DICOM SEG object ({type(error).__name__}); check it, or convert the "
            "mask to NIfTI"
        ) from None
    if segmentation.SegmentationType == "FRACTIONAL":
        raise UserError(
            f"{path}: the DICOM SEG is fractional; expected a binary one or a label map; export it again as binary"
        )
    return segmentation, frames.reshape(-1, *frames.shape[-2:])


def _assign(
    path: Path,
    labels: Mapping[int, str],
    structures: Sequence[str],
    values: Mapping[str, Sequence[int]],
    notices: list[str],
) -> dict[str, list[int]]:
    """Return the numbers of the segments of each structure; `labels` has the label of each segment."""
    listed = ", ".join(f"{number} '{label}'" for number, label in sorted(labels.items()))
    if values:
        known = {number for group in values.values() for number in group}
        if not set(labels) <= known:
            raise UserError(
                f"{path}: the DICOM SEG has the segments {listed}; expected only the numbers in data.mask_values; add "
                "the others there"
            )
        return {name: list(values[name]) for name in structures}
    by_name = {
        name: [number for number, label in labels.items() if label.casefold() == name.casefold()] for name in structures
    }
    if any(by_name.values()):
        if len(labels) > sum(map(len, by_name.values())):
            notices.append("segments of the DICOM SEG without a structure of their name are not read")
        return by_name
    if len(structures) == len(labels) == 1:
        return {structures[0]: list(labels)}
    if len(structures) > 1 and set(labels) <= set(range(1, len(structures) + 1)):
        return {name: [number] for number, name in enumerate(structures, 1)}
    raise UserError(
        f"{path}: the DICOM SEG has the segments {listed}; expected segments that are named or numbered as the "
        f"structures {', '.join(structures)}; assign the numbers with data.mask_values, or the labels as names with "
        "data.structure_names"
    )


def _marks(segmentation: Any, functions: Any, pixels: np.ndarray, numbers: Sequence[int]) -> np.ndarray:
    """Return the pixels of a frame that belong to one of the segments `numbers`, as a flat array of bool."""
    if segmentation.SegmentationType == "LABELMAP":  # a pixel's value is the number of its segment
        return np.isin(pixels, numbers).ravel()
    function = _function("SegmentIdentificationSequence", segmentation, functions)
    return (pixels != 0).ravel() & (int(function.ReferencedSegmentNumber) in numbers)


def _frame_indices(path: Path, segmentation: Any, functions: Any, shape: tuple[int, ...], grid: Grid) -> np.ndarray:
    """Return the voxel of the grid for each pixel of a frame, (3, rows * columns), also outside the grid."""
    try:
        position = _function("PlanePositionSequence", segmentation, functions).ImagePositionPatient
        orientation = _function("PlaneOrientationSequence", segmentation, functions).ImageOrientationPatient
        row_mm, column_mm = _function("PixelMeasuresSequence", segmentation, functions).PixelSpacing
    except (AttributeError, IndexError, TypeError, ValueError):
        raise UserError(
            f"{path}: a frame of the DICOM SEG has no position in the patient; expected one; export it again"
        ) from None
    rows, columns = np.array(orientation, dtype=float).reshape(2, 3)
    affine = np.eye(4)
    affine[:3, :3] = np.stack([rows * float(column_mm), columns * float(row_mm), np.cross(rows, columns)], axis=1)
    affine[:3, 3] = np.array(position, dtype=float)
    affine = LPS_TO_RAS @ affine
    # A frame has no third axis: the axis of the grid that is closest to the frame's normal takes its place.
    axes = grid.affine[:3, :3]
    closest = np.abs(affine[:3, 2] @ axes / np.linalg.norm(axes, axis=0)).argmax()
    affine[:3, 2] = axes[:, closest]
    mapping = voxel_mapping((shape[1], shape[0], 1), affine, grid.affine)
    if mapping is None:
        raise _elsewhere(path, grid)
    matrix, offset = mapping
    row, column = np.indices(shape).reshape(2, -1)
    return matrix[:, :1] * column + matrix[:, 1:2] * row + offset[:, None]


def _function(name: str, segmentation: Any, functions: Any) -> Any:
    """Return a functional group of a frame, which the object stores per frame or once for all frames."""
    source = functions if name in functions else segmentation.SharedFunctionalGroupsSequence[0]
    return source[name][0]


def _elsewhere(path: Path, grid: Grid) -> UserError:
    """The error that a frame does not lie on the voxels of its image."""
    return UserError(
        f"{path}: a frame of the DICOM SEG does not lie on the voxels of its image {grid.path}; expected the same "
        "geometry; choose the series that it was drawn on (data.dicom_series), or resample it and save it as NIfTI"
    )
