"""Store masks that a bundle wrote as NIfTI as DICOM SEG objects of the series from which they were computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medfed import __version__
from medfed.core.errors import Problem, UserError
from medfed.images.dicom import Stack, find_stack, path_of, text, without_identifiers
from medfed.images.grids import reorder_axes
from medfed.images.reading import read_labels
from medfed.outputs.bundle.write import atomic_folder

ENDING = ".nii.gz"
# DICOM allows an object to have these attributes without a value; a de-identified series may lack them.
MAY_BE_EMPTY = (
    "PatientName PatientID PatientBirthDate PatientSex AccessionNumber StudyID StudyDate StudyTime "
    "ReferringPhysicianName"
).split()
SERIES_NUMBER = 1000  # of the new series; medfed does not know which numbers the study has


def write_segmentations(masks: Path, series: Path, out: Path) -> int:
    """Write OUT/NAME.dcm for each series with masks NAME_STRUCTURE.nii.gz; return the number of objects."""
    if out.exists():
        raise Problem("existing folder", out, "exists already", "remove it, or choose another one with --out")
    groups = _masks_by_series(masks, series)
    with atomic_folder(out.resolve()) as folder:
        for name, files in groups.items():
            with without_identifiers():
                _segmentation(series / name, files).save_as(folder / f"{name}.dcm")
    return len(groups)


def _masks_by_series(masks: Path, series: Path) -> dict[str, dict[str, Path]]:
    """Return the masks by the name of the series' folder, then by structure."""
    for folder in (masks, series):
        if not folder.is_dir():
            raise Problem("no folder", folder, "there is no such folder; expected masks and series", "correct the path")
    names = sorted((path.name for path in series.iterdir() if path.is_dir()), key=len, reverse=True)
    groups: dict[str, dict[str, Path]] = {}
    for file in sorted(masks.glob(f"*{ENDING}")):
        name = next((name for name in names if file.name.startswith(f"{name}_")), None)
        if name is None:
            found = f"the mask belongs to no folder of {series}; expected the series from which it was computed"
            raise Problem("mask without a series", file, found, "copy the series there again")
        structure = file.name[len(name) + 1 : -len(ENDING)]
        if "\\" in structure:  # DICOM would read two names
            raise Problem("unusable name of a structure", file, "the structure has a backslash", "rename the file")
        groups.setdefault(name, {})[structure] = file
    if not groups:
        found = f"the folder holds no mask; expected *{ENDING}"
        raise Problem("no mask", masks, found, "name the folder that the bundle wrote (--output_dir)")
    return dict(sorted(groups.items()))


def _segmentation(series: Path, files: Mapping[str, Path]) -> Any:
    """Return the DICOM SEG object of one series: a segment for each mask, in the order of `files`."""
    try:
        import highdicom
        import pydicom
    except ImportError:
        raise UserError(
            "DICOM SEG needs the package highdicom, which is not installed; run pip install 'medfed[dicom]'"
        ) from None
    stack = find_stack(series)
    for keyword in ("StudyInstanceUID", "FrameOfReferenceUID"):
        values = {text(entry, keyword) for entry in stack.slices}
        if len(values) > 1 or "" in values:
            found = f"the slices have {len(values)} values of {keyword}, or an empty one; expected one for all"
            raise Problem("no common identifier", series, found, "export the series again")
    frames = [_frames(file, stack, series) for file in files.values()]
    sources = [pydicom.dcmread(path_of(entry), stop_before_pixels=True) for entry in stack.slices]
    for source in sources:
        for keyword in MAY_BE_EMPTY:
            if keyword not in source:
                setattr(source, keyword, "")
    try:
        return highdicom.seg.Segmentation(
            sources,
            np.stack(frames, axis=-1),
            segmentation_type="BINARY",
            segment_descriptions=_segments(list(files)),
            series_instance_uid=highdicom.UID(),
            series_number=SERIES_NUMBER,
            sop_instance_uid=highdicom.UID(),
            instance_number=1,
            manufacturer="medfed",
            manufacturer_model_name="medfed",
            software_versions=__version__,
            device_serial_number="0",
            specific_character_set="ISO_IR 192",  # UTF-8
            series_description="Segmentation by a model, not for clinical use",
        )
    except Exception as error:  # highdicom raises many types of errors for unusual series; the texts may hold values
        name = str(getattr(error, "name", ""))
        is_missing = isinstance(error, AttributeError) and pydicom.datadict.tag_for_keyword(name)
        reason = f"{name} is missing" if is_missing else type(error).__name__
        found = f"highdicom cannot write a DICOM SEG of this series ({reason})"
        raise Problem("unusual series", series, found, "check the series, or keep the NIfTI masks") from error


def _frames(file: Path, stack: Stack, series: Path) -> np.ndarray:
    """Return a mask as (slices, rows, columns) uint8 in the order of the series."""
    mask = read_labels(file, [])
    reordered = reorder_axes(mask.numpy()[0], mask.affine.numpy(), stack.affine)
    is_same_grid = reordered is not None and reordered[0].shape == stack.shape and not reordered[1].any()
    if reordered is None or not is_same_grid or not np.isin(reordered[0], (0, 1)).all():
        found = f"expected 0 and 1 on the {' x '.join(map(str, stack.shape))} voxels of the series {series}"
        raise Problem("mask of another series", file, f"the mask has other voxels; {found}", "run the bundle again")
    return np.ascontiguousarray(reordered[0].T).astype(np.uint8)


def _segments(structures: Sequence[str]) -> list[Any]:
    """Return the descriptions of the segments; a structure's code is its name, as no dictionary has all of them."""
    import highdicom
    from pydicom.sr.codedict import codes
    from pydicom.sr.coding import Code

    algorithm = highdicom.AlgorithmIdentificationSequence("medfed", codes.DCM.ArtificialIntelligence, __version__)
    return [
        highdicom.seg.SegmentDescription(
            number,
            name,
            codes.SCT.AnatomicalStructure,
            Code(f"structure{number}", "99MEDFED", name),
            "AUTOMATIC",
            algorithm,
        )
        for number, name in enumerate(structures, 1)
    ]
