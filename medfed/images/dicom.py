"""Read a folder of DICOM files as one volume: the slices of one series, sorted by their position in the patient.

pydicom reads the headers, which decide which files belong to the volume and in which order; SimpleITK reads the pixels,
also those compressed as JPEG Lossless or JPEG 2000. Series that are not one regular stack of slices are refused.
Messages name files: they are for the hospital's own eyes (`dicom_names` makes the names that may leave it).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from monai.data import MetaTensor

from medfed.core.errors import Problem, UserError
from medfed.images import grids
from medfed.images.dicom_files import files_of_kind
from medfed.images.file_names import fits
from medfed.images.problems import library_errors

if TYPE_CHECKING:
    from pydicom import Dataset

POSITION_TOLERANCE = 0.1  # slices may lie this fraction of a slice distance away from a regular stack
DIRECTION_TOLERANCE = 1e-3  # of each direction cosine, and of the pixel spacing in mm
MAX_SHEAR = 0.5  # shift of the last slice along its plane in pixels; more is a scanner with a tilted gantry
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
_CURE = (
    "leave out files that are no slices of the volume with data.ignored_names, or convert the series with dcm2niix (a "
    "single image to PNG)"
)
# What a file must have, if it has the attribute at all: SimpleITK would read other files with wrong values or places.
_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "NumberOfFrames": (lambda number: number == 1, "one file per slice, not a multi-frame file"),
    "SOPClassUID": (lambda uid: "Enhanced" not in uid.name, "one file per slice, not a multi-frame (Enhanced) file"),
    "ImageType": (lambda words: "LOCALIZER" not in str(words).upper(), "no localiser (scout)"),
    "PhotometricInterpretation": (lambda kind: kind == "MONOCHROME2", "MONOCHROME2 (grey, black is 0)"),
    "ModalityLUTSequence": (lambda table: False, "RescaleSlope and RescaleIntercept instead of a table of intensities"),
    "RescaleSlope": (lambda slope: 0 < abs(slope) < np.inf, "a finite number other than 0"),
    "RescaleIntercept": (np.isfinite, "a finite number"),
    "PixelSpacing": (lambda numbers: min(numbers) > 0, "2 numbers above 0"),
}
_EQUAL = {  # largest differences between the slices of a series, of which each must have these attributes
    "ImagePositionPatient": np.inf,
    "Columns": 0,
    "Rows": 0,
    "ImageOrientationPatient": DIRECTION_TOLERANCE,
    "PixelSpacing": DIRECTION_TOLERANCE,
}


@dataclass(frozen=True)
class Stack:
    """The slices of one volume, along their normal; `affine` (4, 4) maps (column, row, slice) to millimetres, RAS."""

    slices: tuple[Dataset, ...]
    affine: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of columns, rows and slices."""
        return int(self.slices[0].Columns), int(self.slices[0].Rows), len(self.slices)


def read_series(folder: Path, series: str | None = None, ignored_names: Sequence[str] = ()) -> MetaTensor:
    """Read the volume of a folder of DICOM files, (1, columns, rows, slices) float32, rescaled, in NIfTI's order."""
    import SimpleITK as sitk  # slow to import, and rarely needed

    stack = find_stack(folder, series, ignored_names)
    slices = []
    for path in map(path_of, stack.slices):
        with library_errors(path), without_identifiers():
            pixels = sitk.GetArrayFromImage(sitk.ReadImage(str(path), sitk.sitkFloat32, "GDCMImageIO"))
            if pixels.shape[::-1] != (*stack.shape[:2], 1):
                raise ValueError(f"{pixels.shape[::-1]} voxels, but {stack.shape[:2]} by Columns and Rows")
        slices.append(pixels[0].T)
    voxels = np.ascontiguousarray(np.stack(slices, axis=-1))
    return MetaTensor(torch.from_numpy(voxels)[None], affine=torch.from_numpy(stack.affine))


def find_stack(folder: Path, series: str | None = None, ignored_names: Sequence[str] = ()) -> Stack:
    """Choose the only series, or that with a SeriesDescription (`*`: any characters), and sort its slices."""
    slices = _choose_series(folder, [header(path) for path in files_of_kind(folder, "image", ignored_names)], series)
    for entry in slices:
        with library_errors(path_of(entry), show_reason=False), without_identifiers():
            _check_slice(entry)
            if len(slices) > 1:
                _check_alike(entry, slices[0])
    with library_errors(folder, show_reason=False), without_identifiers():
        return _sort(folder, slices)


def patient_id(folder: Path, ignored_names: Sequence[str] = ()) -> str:
    """Return PatientID of the first image in a folder of DICOM files; "" if it is empty or the file is damaged."""
    with suppress(UserError):  # `read_series` reports a damaged file
        return text(header(files_of_kind(folder, "image", ignored_names)[0]), "PatientID")
    return ""


def header(path: Path) -> Dataset:
    """Read the attributes of a DICOM file that place its slice in a series."""
    import pydicom  # slow to import, and rarely needed

    with library_errors(path, show_reason=False), without_identifiers():
        dataset = pydicom.dcmread(path, defer_size=1024, force=True)
        _ = dataset.Columns * dataset.Rows  # other objects have none
    return dataset


def path_of(header: Dataset) -> Path:
    return Path(str(header.filename))


def text(header: Dataset, keyword: str) -> str:
    """Return a text as it is stored, or "": names of patients must not depend on the character set of a file."""
    element = header.get_item(keyword)
    return ((element and element.value) or b"").decode("utf-8", "surrogateescape").strip("\0 ")


def _check_slice(entry: Dataset) -> None:
    for keyword, (is_usable, expected) in _EXPECTED.items():
        value = entry.get(keyword)
        if value not in (None, "") and not is_usable(value):
            shown = "a table" if keyword == "ModalityLUTSequence" else value
            found = f"{keyword} is {shown}; expected {expected}"
            raise Problem(f"unusable {keyword}", path_of(entry), found, _CURE)
    n_bytes = getattr(entry.get_item("PixelData", keep_deferred=True), "length", 0)
    n_expected = -(-entry.Rows * entry.Columns * entry.get("BitsAllocated", 0) // 8)
    syntax = entry.file_meta.get("TransferSyntaxUID")
    if not (syntax and syntax.is_compressed) and n_bytes not in (n_expected, n_expected + n_expected % 2):
        found = f"the pixel data have {n_bytes:,} bytes; expected {n_expected:,} by Rows, Columns and BitsAllocated"
        cure = "copy the file again from its source"
        raise Problem("pixel data of another length", path_of(entry), found, cure)


def _check_alike(entry: Dataset, first: Dataset) -> None:
    for keyword, tolerance in _EQUAL.items():
        value, usual = entry.get(keyword), first.get(keyword)
        numbers, expected = (np.array(one or np.nan, dtype=float) for one in (value, usual))
        if not np.allclose(numbers, expected, rtol=0, atol=tolerance):
            found = f"{keyword} is {value}, and {usual} in {path_of(first).name}"
            found += "; expected slices with a position each, and with the same size, orientation and spacing"
            raise Problem("different slices in a series", path_of(entry), found, _CURE)


def _choose_series(folder: Path, headers: Sequence[Dataset], series: str | None) -> list[Dataset]:
    """Return the slices of the only series, or of the only one that fits the setting."""
    if not headers:
        found = "no DICOM image in this folder; expected the slices of a series"
        raise Problem("no DICOM image", folder, found, "copy them again")
    if len({text(entry, "PatientID") for entry in headers}) > 1:
        found = "the DICOM files have different values of PatientID; expected the images of one patient"
        raise Problem("several patients", folder, found, "put those of the other patient into another folder")
    groups: dict[str, list[Dataset]] = {}
    for entry in headers:
        groups.setdefault(text(entry, "SeriesInstanceUID"), []).append(entry)
    names = {uid: text(group[0], "SeriesDescription") for uid, group in groups.items()}
    chosen = [uid for uid, name in names.items() if series is None or fits(name, series)]
    if len(chosen) == 1:
        return groups[chosen[0]]
    listed = ", ".join(sorted(f"'{names[uid]}' (slices: {len(group)})" for uid, group in groups.items()))
    found = f"found {len(groups)} DICOM series: {listed}; expected one that fits data.dicom_series '{series or '*'}'"
    cure = "choose one by its description with data.dicom_series, or leave the others out with data.ignored_names"
    raise Problem("several DICOM series", folder, found, cure)


def _sort(folder: Path, slices: Sequence[Dataset]) -> Stack:
    """Sort slices along their normal; a single one, such as a radiograph, may lack a position and then has 1 mm."""
    first = slices[0]
    rows, columns = _numbers(first, "ImageOrientationPatient", (1, 0, 0, 0, 1, 0)).reshape(2, 3)
    row_mm, column_mm = _numbers(first, "PixelSpacing", (1, 1))
    normal = np.cross(rows, columns)
    normal /= np.linalg.norm(normal)
    ordered = sorted(
        slices, key=lambda entry: float(np.dot(_numbers(entry, "ImagePositionPatient", (0, 0, 0)), normal))
    )
    positions = np.array([_numbers(entry, "ImagePositionPatient", (0, 0, 0)) for entry in ordered])
    if len(ordered) > 1:
        step = (positions[-1] - positions[0]) / (len(ordered) - 1)
        heights = positions @ normal
        gaps = np.diff(heights)
        usual = float(np.median(gaps))
        deviation = np.abs(heights - np.linspace(heights[0], heights[-1], len(heights))).max()
        if not deviation < POSITION_TOLERANCE * usual:  # also if all are 0
            index = int(np.abs(gaps - usual).argmax())
            names = " and ".join(path_of(entry).name for entry in ordered[index : index + 2])
            found = f"the distance of {names} is {gaps[index]:.4g} mm, that of most others {usual:.4g} mm"
            cure = "add missing slices, or leave copies, other echoes, b-values and times out with data.ignored_names"
            raise Problem("unequal distances of slices", folder, f"{found}; expected equal ones above 0", cure)
        shifts = (positions - positions[0]) - np.outer((positions - positions[0]) @ normal, normal)
        shift_mm = np.linalg.norm(shifts, axis=1).max()
        if shift_mm > MAX_SHEAR * min(row_mm, column_mm):
            found = f"the slices are shifted along their plane, by {shift_mm:.3g} mm in all (a tilted gantry)"
            raise Problem("tilted gantry", folder, f"{found}; expected a stack at a right angle", _CURE)
    else:
        thickness_mm = _numbers(first, "SpacingBetweenSlices", first.get("SliceThickness") or 1)
        step = normal * (abs(float(thickness_mm)) or 1.0)
    affine = np.eye(4)
    affine[:3, :3] = np.stack([rows * column_mm, columns * row_mm, step], axis=1)
    affine[:3, 3] = positions[0]
    grids.check_affine(folder, LPS_TO_RAS @ affine)
    return Stack(tuple(ordered), LPS_TO_RAS @ affine)


def _numbers(entry: Dataset, keyword: str, default: object) -> np.ndarray:
    """Return the numbers of an attribute; `default` if the file lacks it."""
    value = entry.get(keyword)
    return np.array(default if value in (None, "") else value, dtype=float)


@contextmanager
def without_identifiers() -> Iterator[None]:
    """Silence ITK, pydicom and highdicom, whose warnings quote names of files and identifiers of patients."""
    import SimpleITK as sitk

    loggers = [logging.getLogger(name) for name in ("highdicom", "pydicom")]
    levels = [logger.level for logger in loggers]
    was_shown = sitk.ProcessObject.GetGlobalWarningDisplay()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sitk.ProcessObject.SetGlobalWarningDisplay(False)
        try:
            for logger in loggers:
                logger.setLevel(logging.CRITICAL + 1)
            yield
        finally:
            sitk.ProcessObject.SetGlobalWarningDisplay(was_shown)
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
