"""Read a folder of DICOM files as one volume: the slices of one series, sorted by their position in the patient.

pydicom reads the headers, which decide which files belong to the volume and in which order; SimpleITK reads the pixels,
also those compressed as JPEG Lossless or JPEG 2000. Series that are not one regular stack of slices are refused.
Messages name files: they are for the hospital's own eyes (`dicom_names` makes the names that may leave it).
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from monai.data import MetaTensor

from medfed.core.errors import Problem, UserError
from medfed.images import grids
from medfed.images.dicom_files import files_of_kind

if TYPE_CHECKING:
    from pydicom import Dataset

POSITION_TOLERANCE = 0.1  # slices may lie this fraction of a slice distance away from a regular stack
DIRECTION_TOLERANCE = 1e-3  # of each direction cosine, and of the pixel spacing in mm
MAX_SHEAR = 0.5  # shift of the last slice along its plane in pixels; more is a scanner with a tilted gantry
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
_CONVERT = "export the series again, or convert it to NIfTI (with dcm2niix)"
_REMOVE = "remove slices that do not belong to the volume, or leave them out with data.ignored_names"
_ATTRIBUTES = (
    "ImageType SOPClassUID SeriesDescription PatientID SliceThickness SpacingBetweenSlices "
    "StudyInstanceUID SeriesInstanceUID ImagePositionPatient ImageOrientationPatient FrameOfReferenceUID "
    "SamplesPerPixel PhotometricInterpretation NumberOfFrames Rows Columns PixelSpacing BitsAllocated RescaleIntercept "
    "RescaleSlope ModalityLUTSequence PixelData"
).split()


@dataclass(frozen=True)
class Header:
    """What places the slice of a DICOM file in a series. A text is "", and numbers are (), if the file lacks them."""

    path: Path
    patient: str  # PatientID
    study: str
    series: str
    frame_of_reference: str
    description: str  # of the series
    size: tuple[int, int]  # (Columns, Rows)
    position: tuple[float, ...]  # ImagePositionPatient in mm
    orientation: tuple[float, ...]  # ImageOrientationPatient: the direction of a row and that of a column
    spacing_mm: tuple[float, ...]  # PixelSpacing: the distance of rows and that of columns
    thickness_mm: float  # SpacingBetweenSlices or SliceThickness; 1 if the file lacks both
    problem: Problem | None  # why the file is no slice of grey values


@dataclass(frozen=True)
class Stack:
    """The slices of one volume.

    Args:
        slices: headers of the slices, from the lowest to the highest position along the normal of the slices.
        affine: (4, 4), maps the indices (column, row, slice) to millimetres, in RAS coordinates as in NIfTI.
    """

    slices: tuple[Header, ...]
    affine: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of columns, rows and slices."""
        return (*self.slices[0].size, len(self.slices))


def read_series(folder: Path, series: str | None = None, ignored_names: Sequence[str] = ()) -> MetaTensor:
    """Read the volume of a folder of DICOM files, (1, columns, rows, slices) float32 in the order of NIfTI.

    Rescale slope and intercept are applied. The attribute `affine`, (4, 4), maps voxel indices to millimetres. The
    arguments and errors are those of `find_stack`.
    """
    import SimpleITK as sitk  # slow to import, and rarely needed

    stack = find_stack(folder, series, ignored_names)
    reader = sitk.ImageSeriesReader()
    reader.SetImageIO("GDCMImageIO")
    reader.SetFileNames([str(entry.path) for entry in stack.slices])
    reader.SetOutputPixelType(sitk.sitkFloat32)  # else the type of the first file, which cuts off other rescale slopes
    try:
        with without_identifiers():
            voxels = sitk.GetArrayFromImage(reader.Execute())
        if voxels.shape[::-1] != stack.shape:
            raise RuntimeError(f"{voxels.shape[::-1]} voxels, but {stack.shape} by Columns, Rows and number of slices")
    except RuntimeError as error:
        found = f"cannot read the DICOM files ({str(error).strip().rpartition(chr(10))[2]})"
        raise Problem("damaged DICOM series", folder, found, "check them, or copy them again") from None
    grids.check_affine(folder, stack.affine)
    image = torch.from_numpy(np.ascontiguousarray(voxels.transpose(2, 1, 0)))[None]
    return MetaTensor(image, affine=torch.from_numpy(stack.affine))


def find_stack(folder: Path, series: str | None = None, ignored_names: Sequence[str] = ()) -> Stack:
    """Choose the series of a folder, and of the folders inside it, and sort its slices. Only headers are read.

    `series` is the SeriesDescription, in which a `*` stands for any characters; None expects one series. Problem if not
    exactly one series fits, or if its slices are no regular stack.
    """
    slices = _choose_series(folder, [header(path) for path in files_of_kind(folder, "image", ignored_names)], series)
    for entry in slices:
        if entry.problem:
            raise entry.problem
    _check_alike(slices)
    return _sort(folder, slices)


def patient_id(folder: Path, ignored_names: Sequence[str] = ()) -> str:
    """Return PatientID of the first image in a folder of DICOM files; "" if it is empty or the file is damaged."""
    with suppress(UserError):  # `read_series` reports a damaged file
        return header(files_of_kind(folder, "image", ignored_names)[0]).patient
    return ""


def folder_sha256(folder: Path) -> str:
    """Return the SHA-256 of the images in a folder of DICOM files, which does not depend on the names of the files."""
    digests = sorted(hashlib.sha256(path.read_bytes()).digest() for path in files_of_kind(folder, "image"))
    return hashlib.sha256(b"".join(digests)).hexdigest()


def folder_size(folder: Path) -> int:
    """Return the number of bytes of the images in a folder of DICOM files and in the folders inside it."""
    return sum(path.stat().st_size for path in files_of_kind(folder, "image"))


def header(path: Path) -> Header:
    """Read the header of a DICOM file."""
    import pydicom  # slow to import, and rarely needed

    try:
        with without_identifiers():
            dataset = pydicom.dcmread(path, defer_size=1024, force=True, specific_tags=list(_ATTRIBUTES))
            size, problem = (int(dataset.Columns), int(dataset.Rows)), _problem(path, dataset)
    except Exception as error:  # pydicom raises many types of errors for damaged files; the texts may hold values
        found = f"this DICOM file is damaged or holds no image ({type(error).__name__})"
        cure = "copy it again from its source, or leave it out with data.ignored_names"
        raise Problem("damaged DICOM file", path, found, cure) from None
    thickness = _numbers(dataset, "SpacingBetweenSlices", 1) or _numbers(dataset, "SliceThickness", 1) or (1.0,)
    return Header(
        path=path,
        patient=_text(dataset, "PatientID"),
        study=_text(dataset, "StudyInstanceUID"),
        series=_text(dataset, "SeriesInstanceUID"),
        frame_of_reference=_text(dataset, "FrameOfReferenceUID"),
        description=_text(dataset, "SeriesDescription"),
        size=size,
        position=_numbers(dataset, "ImagePositionPatient", 3),
        orientation=_numbers(dataset, "ImageOrientationPatient", 6),
        spacing_mm=_numbers(dataset, "PixelSpacing", 2),
        thickness_mm=abs(thickness[0]) or 1.0,
        problem=problem,
    )


def _text(dataset: Dataset, keyword: str) -> str:
    """Return an attribute as it is stored: names of patients must not depend on the character set of a file."""
    element = dataset.get_item(keyword)
    return ((element and element.value) or b"").decode("utf-8", "surrogateescape").strip("\0 ")


def _numbers(dataset: Dataset, keyword: str, n: int) -> tuple[float, ...]:
    """Return the `n` numbers of an attribute; () if the file has another count or no finite numbers."""
    try:
        values = tuple(map(float, _text(dataset, keyword).split("\\")))
    except ValueError:
        return ()
    return values if len(values) == n and np.isfinite(values).all() else ()


def _problem(path: Path, dataset: Dataset) -> Problem | None:
    """Return why a file is no slice of grey values, or why SimpleITK would read other values than the file means."""
    from pydicom.uid import UID, ExplicitVRLittleEndian

    n_frames = int(_text(dataset, "NumberOfFrames") or 1)
    if n_frames > 1 or "Enhanced" in UID(_text(dataset, "SOPClassUID")).name:
        found = f"this is a multi-frame DICOM file ({n_frames} frames); expected one file per slice"
        return Problem("multi-frame DICOM file", path, found, _CONVERT)
    if "LOCALIZER" in _text(dataset, "ImageType").upper().split("\\"):
        found = "this is a localiser (scout) by its ImageType; expected slices of the volume"
        return Problem("localiser", path, found, _REMOVE)
    photometric, n_samples = _text(dataset, "PhotometricInterpretation"), dataset.get("SamplesPerPixel", 1)
    if photometric not in ("", "MONOCHROME2") or n_samples != 1:
        found = (
            f"PhotometricInterpretation is {photometric} and SamplesPerPixel is {n_samples}; expected MONOCHROME2 and 1"
        )
        return Problem("no grey values", path, found, _CONVERT)
    if "ModalityLUTSequence" in dataset:
        found = "a table (ModalityLUTSequence) gives the intensities; expected RescaleSlope and RescaleIntercept"
        return Problem("table of intensities", path, found, _CONVERT)
    for name in ("RescaleSlope", "RescaleIntercept"):
        text, number = _text(dataset, name), _numbers(dataset, name, 1)
        if text and (not number or name == "RescaleSlope" and number == (0,)):
            found = f"{name} is '{text}'; expected a finite number, and a slope other than 0"
            return Problem("unusable rescale slope", path, found, _CONVERT)
    n_bytes = getattr(dataset.get_item("PixelData", keep_deferred=True), "length", 0)
    n_expected = -(-dataset.Rows * dataset.Columns * dataset.get("BitsAllocated", 0) // 8)
    is_compressed = dataset.file_meta.get("TransferSyntaxUID", ExplicitVRLittleEndian).is_compressed
    if not is_compressed and n_bytes not in (n_expected, n_expected + n_expected % 2):
        found = f"the pixel data have {n_bytes:,} bytes; expected {n_expected:,} by Rows, Columns and BitsAllocated"
        return Problem("pixel data of another length", path, found, "copy the file again from its source")
    return None


def _choose_series(folder: Path, headers: Sequence[Header], series: str | None) -> list[Header]:
    """Return the slices of the only series, or of the only one that fits the setting."""
    if not headers:
        found = "no DICOM image in this folder; expected the slices of a series"
        raise Problem("no DICOM image", folder, found, "copy them again")
    if len({entry.patient for entry in headers}) > 1:
        found = "the DICOM files have different values of PatientID; expected the images of one patient"
        raise Problem("several patients", folder, found, "put those of the other patient into another folder")
    by_uid: dict[str, list[Header]] = {}
    for entry in headers:
        by_uid.setdefault(entry.series, []).append(entry)
    groups = list(by_uid.values())
    chosen = [
        group for group in groups if series is None or fnmatch(group[0].description.casefold(), series.casefold())
    ]
    if len(chosen) == 1:
        return chosen[0]
    listed = ", ".join(
        sorted(f"'{group[0].description}' ({len(group)} slice{'s' * (len(group) != 1)})" for group in groups)
    )
    if series is None:
        found = f"found {len(groups)} DICOM series: {listed}; expected one"
        cure = f"choose it by its description, such as data.dicom_series: '{max(groups, key=len)[0].description}'"
    else:
        found = f"{len(chosen)} series fit data.dicom_series '{series}'; expected exactly one; found {listed}"
        cure = "correct the setting ('*' stands for any characters)"
    raise Problem("several DICOM series", folder, found, f"{cure}, or leave the others out with data.ignored_names")


def _check_alike(slices: Sequence[Header]) -> None:
    """Refuse slices of different size, orientation or pixel spacing, and several slices without a position."""
    first = slices[0]
    for entry in slices[1:]:
        for incomplete in (first, entry):
            if not (incomplete.position and incomplete.orientation and incomplete.spacing_mm):
                found = "ImagePositionPatient, ImageOrientationPatient or PixelSpacing is missing; expected all three"
                raise Problem("slice without a position", incomplete.path, found, _REMOVE)
        for name, value, usual, tolerance in (
            ("Columns and Rows", entry.size, first.size, 0),
            ("ImageOrientationPatient", entry.orientation, first.orientation, DIRECTION_TOLERANCE),
            ("PixelSpacing", entry.spacing_mm, first.spacing_mm, DIRECTION_TOLERANCE),
        ):
            if not np.allclose(value, usual, rtol=0, atol=tolerance):
                found = f"{name}: {value}, but {usual} in {first.path.name} of the same series; expected equal values"
                raise Problem("different slices in a series", entry.path, found, _REMOVE)


def _sort(folder: Path, slices: Sequence[Header]) -> Stack:
    """Sort slices by their position along their normal, and refuse those that are no regular stack."""
    first = slices[0]
    rows, columns = np.array(first.orientation or (1, 0, 0, 0, 1, 0), dtype=float).reshape(2, 3)
    normal = np.cross(rows, columns)
    if (length := np.linalg.norm(normal)) < 0.5:
        found = f"ImageOrientationPatient is {first.orientation}; expected two directions at a right angle"
        raise Problem("directions without a right angle", first.path, found, "export the series again")
    normal /= length
    ordered = sorted(slices, key=lambda entry: float(np.dot(entry.position or (0, 0, 0), normal)))
    row_mm, column_mm = first.spacing_mm or (1.0, 1.0)
    positions = np.array([entry.position or (0.0, 0.0, 0.0) for entry in ordered])
    step = normal * first.thickness_mm
    if len(ordered) > 1:
        step = (positions[-1] - positions[0]) / (len(ordered) - 1)
        _check_regular(folder, ordered, positions @ normal)
        shifts = (positions - positions[0]) - np.outer((positions - positions[0]) @ normal, normal)
        shift_mm = np.linalg.norm(shifts, axis=1).max()
        if shift_mm > MAX_SHEAR * min(row_mm, column_mm):
            found = f"the slices are shifted along their plane, by {shift_mm:.3g} mm in all (a tilted gantry)"
            raise Problem("tilted gantry", folder, f"{found}; expected a stack at a right angle", _CONVERT)
    affine = np.eye(4)
    affine[:3, :3] = np.stack([rows * column_mm, columns * row_mm, step], axis=1)
    affine[:3, 3] = positions[0]
    return Stack(tuple(ordered), LPS_TO_RAS @ affine)


def _check_regular(folder: Path, slices: Sequence[Header], heights_mm: np.ndarray) -> None:
    """Refuse slices at the same position, and slices at unequal distances, as where one is missing."""
    gaps = np.diff(heights_mm)
    usual = float(np.median(gaps))
    index = int(gaps.argmin())
    if gaps[index] <= POSITION_TOLERANCE * usual or usual == 0:
        found = f"the slice lies at the same position as {slices[index].path.name}; expected one slice per position"
        cure = "leave copies, or all but one echo, b-value or time, out with data.ignored_names"
        raise Problem("repeated slice", slices[index + 1].path, found, cure)
    regular = np.linspace(heights_mm[0], heights_mm[-1], len(heights_mm))
    if np.abs(heights_mm - regular).max() > POSITION_TOLERANCE * usual:
        index = int(np.abs(gaps - usual).argmax())
        names = f"{slices[index].path.name} and {slices[index + 1].path.name}"
        found = (
            f"the distance of {names} is {gaps[index]:.4g} mm, but {usual:.4g} mm is usual; expected equal distances"
        )
        raise Problem("unequal distances of slices", folder, found, f"add missing slices, or {_REMOVE}")


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
