"""Read masks from DICOM SEG objects with highdicom, on the voxel grid of the image that they belong to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor

from medfed.core.errors import Problem
from medfed.images.dicom import LPS_TO_RAS, POSITION_TOLERANCE, without_identifiers
from medfed.images.grids import reorder_axes
from medfed.images.problems import library_errors


@dataclass(frozen=True)
class Grid:
    """The voxel grid (H, W, D) of the image at `path`; the affine, (4, 4), maps voxel indices to millimetres, RAS."""

    path: Path
    shape: tuple[int, ...]
    affine: np.ndarray
    frame_of_reference: str = ""  # of a DICOM image, if it is known


def read_segmentation(
    path: Path,
    grid: Grid,
    structures: Sequence[str],
    values: Mapping[str, Sequence[int]],
    background: Sequence[int],
    notices: list[str],
) -> MetaTensor:
    """Read a DICOM SEG object as one channel of 0 and 1 per structure: (S, H, W, D) uint8 on the grid.

    A segment belongs to the structure of its label, or a single segment to a single structure; `values` lists the
    numbers of each structure's segments instead. A structure without a segment is empty; it is refused if none has one,
    or if a segment that is not read has a similar name.
    """
    with library_errors(path, show_reason=False), without_identifiers():
        segmentation = _open(path, grid)
        if segmentation.SegmentationType == "FRACTIONAL":
            found = "the DICOM SEG is fractional; expected a binary one or a label map"
            raise Problem("fractional DICOM SEG", path, found, "export it again as binary")
        # A label map may describe its background as segment 0.
        numbers = sorted(int(number) for number in segmentation.segment_numbers if number)
        labels = {number: str(segmentation.get_segment_description(number).SegmentLabel) for number in numbers}
        volume = segmentation.get_volume_geometry(rtol=POSITION_TOLERANCE) and segmentation.get_volume(
            segment_numbers=numbers, dtype=np.uint8, rescale_fractional=False, rtol=POSITION_TOLERANCE
        )
        frame_of_reference = str(segmentation.get("FrameOfReferenceUID", grid.frame_of_reference))
    folded = {number: label.casefold() for number, label in labels.items()}
    by_label = {name: [number for number, label in folded.items() if label == name.casefold()] for name in structures}
    is_single = len(structures) == len(labels) == 1
    assigned = values or ({structures[0]: numbers} if is_single else by_label)
    unread = labels.keys() - {*background}.union(*assigned.values())
    missing = [name for name, numbers in assigned.items() if labels.keys().isdisjoint(numbers)]
    is_unclear = len(missing) == len(assigned) or any(
        _is_similar(name.casefold(), folded[number]) for name in missing for number in unread
    )
    is_contradicted = any(not {*by_label[name]} <= {*own} for name, own in assigned.items())
    if is_contradicted or (unread and (values or is_unclear)):
        listed = ", ".join(f"{number} '{label}'" for number, label in labels.items())
        expected = f"the names {', '.join(structures)}"
        cure = "correct data.structure_names, or set data.mask_values to the numbers of each structure"
        if values:
            expected = "only numbers in data.mask_values, and no name of a structure that has another number there"
            cure = "correct data.mask_values, or set it to {} for this site in data.by_site, so that the names decide"
        found = f"the DICOM SEG has the segments {listed}; expected {expected}"
        raise Problem("unknown segment", path, found, cure)
    if unread:
        notices.append("segments of the DICOM SEG without a structure of their name are not read")
    found = f"a frame of the DICOM SEG does not lie on the voxels of its image {grid.path}; expected the same scan"
    cure = "choose the series that it was drawn on (data.dicom_series), or resample it and save it as NIfTI"
    elsewhere = Problem("DICOM SEG of another scan", path, found, cure)
    reordered = volume and reorder_axes(volume.array, LPS_TO_RAS @ volume.affine, grid.affine)
    if reordered is None or grid.frame_of_reference not in ("", frame_of_reference):
        raise elsewhere
    segments, start = reordered
    channels = np.zeros((len(structures), *grid.shape), dtype=np.uint8)
    for channel, structure in zip(channels, structures):
        is_marked = segments[..., [number in assigned[structure] for number in numbers]].any(axis=-1)
        voxels = np.argwhere(is_marked) + start
        if ((voxels < 0) | (voxels >= grid.shape)).any():
            raise elsewhere
        channel[tuple(voxels.T)] = 1
    affine = torch.from_numpy(grid.affine)
    return MetaTensor(torch.from_numpy(channels), affine=affine, meta={"label_values": [0, *numbers]})


def _is_similar(name: str, label: str) -> bool:
    """Return whether a label may be another spelling of a name, or has the name as a word; both are in lower case."""
    return SequenceMatcher(None, name, label).ratio() > 0.8 or bool(re.search(rf"\b{re.escape(name)}\b", label))


def _open(path: Path, grid: Grid) -> Any:
    """Return highdicom's object, with the distance of the grid's slices, as empty slices are often left out."""
    try:
        import highdicom
    except ImportError:
        found = "this is a DICOM SEG object, and highdicom, which reads it, is not installed"
        cure = "run pip install 'medfed[dicom]', or convert the mask to NIfTI"
        raise Problem("highdicom is missing", path, found, cure) from None
    import pydicom

    dataset = pydicom.dcmread(path)
    groups = (*dataset.SharedFunctionalGroupsSequence, *dataset.PerFrameFunctionalGroupsSequence)
    planes = [group.PlaneOrientationSequence[0] for group in groups if "PlaneOrientationSequence" in group]
    rows, columns = np.array(planes[0].ImageOrientationPatient, dtype=float).reshape(2, 3)
    normal = LPS_TO_RAS[:3, :3] @ np.cross(rows, columns)
    for group in groups:
        for measures in group.get("PixelMeasuresSequence", ()):
            measures.SpacingBetweenSlices = float(np.abs(normal @ grid.affine[:3, :3]).max())
    return highdicom.seg.Segmentation.from_dataset(dataset, copy=False)
