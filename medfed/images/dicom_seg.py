"""Read masks from DICOM SEG objects with highdicom, on the voxel grid of the image that they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor

from medfed.core.errors import Problem
from medfed.images.dicom import LPS_TO_RAS, POSITION_TOLERANCE, without_identifiers
from medfed.images.grids import reorder_axes


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
    segmentation, volume = _open(path, grid)
    if segmentation.SegmentationType == "FRACTIONAL":
        found = "the DICOM SEG is fractional; expected a binary one or a label map"
        raise Problem("fractional DICOM SEG", path, found, "export it again as binary")
    if grid.frame_of_reference not in ("", str(segmentation.get("FrameOfReferenceUID", grid.frame_of_reference))):
        found = f"the DICOM SEG has another frame of reference than its image {grid.path}; expected the same scan"
        cure = "choose the series that it was drawn on (data.dicom_series)"
        raise Problem("DICOM SEG of another scan", path, found, cure)
    labels = {
        number: str(segmentation.get_segment_description(number).SegmentLabel) for number in _numbers(segmentation)
    }
    assigned = _assign(path, labels, structures, values, notices)
    found = f"a frame of the DICOM SEG does not lie on the voxels of its image {grid.path}; expected the same geometry"
    cure = "choose the series that it was drawn on (data.dicom_series), or resample it and save it as NIfTI"
    elsewhere = Problem("DICOM SEG with another geometry", path, found, cure)
    reordered = volume and reorder_axes(volume.array, LPS_TO_RAS @ volume.affine, grid.affine)
    if reordered is None:
        raise elsewhere
    segments, start = reordered
    channels = np.zeros((len(structures), *grid.shape), dtype=np.uint8)
    for channel, structure in zip(channels, structures):
        is_marked = segments[..., [number in assigned[structure] for number in labels]].any(axis=-1)
        voxels = np.argwhere(is_marked) + start
        if ((voxels < 0) | (voxels >= grid.shape)).any():
            raise elsewhere
        channel[tuple(voxels.T)] = 1
    return MetaTensor(
        torch.from_numpy(channels), affine=torch.from_numpy(grid.affine), meta={"label_values": [0, *labels]}
    )


def _open(path: Path, grid: Grid) -> tuple[Any, Any]:
    """Return highdicom's object and its volume, (slices, rows, columns, segments); None if it is no regular stack."""
    try:
        import highdicom
    except ImportError:
        found = "this is a DICOM SEG object, and highdicom, which reads it, is not installed"
        cure = "run pip install 'medfed[dicom]', or convert the mask to NIfTI"
        raise Problem("highdicom is missing", path, found, cure) from None
    import pydicom

    try:
        with without_identifiers():
            dataset = pydicom.dcmread(path)
            # Empty slices are often left out, so the distance of slices is that of the grid along the frames' normal.
            groups = (*dataset.SharedFunctionalGroupsSequence, *dataset.PerFrameFunctionalGroupsSequence)
            planes = [group.PlaneOrientationSequence[0] for group in groups if "PlaneOrientationSequence" in group]
            rows, columns = np.array(planes[0].ImageOrientationPatient, dtype=float).reshape(2, 3)
            normal = LPS_TO_RAS[:3, :3] @ np.cross(rows, columns)
            for group in groups:
                for measures in group.get("PixelMeasuresSequence", ()):
                    measures.SpacingBetweenSlices = float(np.abs(normal @ grid.affine[:3, :3]).max())
            segmentation = highdicom.seg.Segmentation.from_dataset(dataset, copy=False)
            if segmentation.get_volume_geometry(rtol=POSITION_TOLERANCE) is None:
                return segmentation, None
            volume = segmentation.get_volume(
                segment_numbers=_numbers(segmentation),
                dtype=np.uint8,
                rescale_fractional=False,
                rtol=POSITION_TOLERANCE,
            )
    except Exception as error:  # pydicom and highdicom raise many types of errors for damaged files
        found = f"highdicom cannot read this DICOM SEG object ({type(error).__name__})"
        raise Problem("damaged DICOM SEG", path, found, "check it, or convert the mask to NIfTI") from None
    return segmentation, volume


def _numbers(segmentation: Any) -> list[int]:
    """Return the numbers of the segments; a label map may describe its background as segment 0."""
    return sorted(int(number) for number in segmentation.segment_numbers if number)


def _assign(
    path: Path,
    labels: Mapping[int, str],
    structures: Sequence[str],
    values: Mapping[str, Sequence[int]],
    notices: list[str],
) -> Mapping[str, Sequence[int]]:
    """Return the numbers of the segments of each structure; `labels` has the label of each segment."""
    by_name = {
        name: [number for number, label in labels.items() if label.casefold() == name.casefold()] for name in structures
    }
    if any(by_name.values()) and not values:
        if len(labels) > sum(map(len, by_name.values())):
            notices.append("segments of the DICOM SEG without a structure of their name are not read")
        return by_name
    if len(structures) == len(labels) == 1 and not values:
        return {structures[0]: list(labels)}
    assigned = values or {name: [number] for number, name in enumerate(structures, 1)}
    if set(labels) <= {number for numbers in assigned.values() for number in numbers}:
        return assigned
    listed = ", ".join(f"{number} '{label}'" for number, label in labels.items())
    expected = f"the names or numbers of {', '.join(structures)}, or only the numbers in data.mask_values"
    found = f"the DICOM SEG has the segments {listed}; expected {expected}"
    raise Problem("unknown segment", path, found, "correct data.mask_values")
