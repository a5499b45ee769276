"""Read a folder of DICOM files as one volume: the slices of one series, sorted by their position in the patient.

pydicom reads the headers, which decide which files belong to the volume and in which order; SimpleITK reads the pixels,
also those compressed as JPEG Lossless or JPEG 2000. Series that are not one regular stack of slices are refused.
Messages name files: they are for the hospital's own eyes (`dicom_names` makes the names that may leave it).
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from monai.data import MetaTensor

from medfed.core.errors import Problem, UserError
from medfed.images import grids
from medfed.images.dicom_files import files_of_kind
from medfed.images.problems import library_errors, reason

if TYPE_CHECKING:
    from pydicom import Dataset

POSITION_TOLERANCE = 0.1  # slices may lie this fraction of a slice distance away from a regular stack
DIRECTION_TOLERANCE = 1e-3  # of each direction cosine, and of the pixel spacing in mm
MAX_SHEAR = 0.5  # shift of the last slice along its plane in pixels; more is a scanner with a tilted gantry
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
_REMOVE = "leave out files that are no slices of the volume with data.ignored_names"
_CONVERT = f"{_REMOVE}, or convert the series to NIfTI (with dcm2niix)"
_ATTRIBUTES = (
    "ImageType SOPClassUID SeriesDescription PatientID SliceThickness SpacingBetweenSlices "
    "StudyInstanceUID SeriesInstanceUID ImagePositionPatient ImageOrientationPatient FrameOfReferenceUID "
    "SamplesPerPixel PhotometricInterpretation NumberOfFrames Rows Columns PixelSpacing BitsAllocated RescaleIntercept "
    "RescaleSlope ModalityLUTSequence PixelData"
).split()
# What a file must have, if it has the attribute at all, to be a slice of grey values that SimpleITK reads as it means.
_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "NumberOfFrames": (lambda number: number == 1, "one file per slice, not a multi-frame file"),
    "SOPClassUID": (lambda uid: "Enhanced" not in uid.name, "one file per slice, not a multi-frame (Enhanced) file"),
    "ImageType": (lambda words: "LOCALIZER" not in str(words).upper(), "no localiser (scout)"),
    "PhotometricInterpretation": (lambda kind: kind == "MONOCHROME2", "MONOCHROME2"),
    "SamplesPerPixel": (lambda number: number == 1, "1"),
    "ModalityLUTSequence": (lambda table: False, "RescaleSlope and RescaleIntercept instead of a table of intensities"),
    "RescaleSlope": (lambda slope: 0 < abs(slope) < np.inf, "a finite number other than 0"),
    "RescaleIntercept": (np.isfinite, "a finite number"),
    "ImagePositionPatient": (lambda numbers: len(numbers) == 3 and np.isfinite(numbers).all(), "3 finite numbers"),
    "ImageOrientationPatient": (lambda numbers: len(numbers) == 6 and np.isfinite(numbers).all(), "6 finite numbers"),
    "PixelSpacing": (
        lambda numbers: len(numbers) == 2 and np.isfinite(numbers).all() and min(numbers) > 0,
        "2 numbers above 0",
    ),
}
_EQUAL = {  # largest differences between the slices of a series
    "Columns": 0,
    "Rows": 0,
    "ImageOrientationPatient": DIRECTION_TOLERANCE,
    "PixelSpacing": DIRECTION_TOLERANCE,
}


@dataclass(frozen=True)
class Stack:
    """The slices of one volume.

    Args:
        slices: headers of the slices, from the lowest to the highest position along the normal of the slices.
        affine: (4, 4), maps the indices (column, row, slice) to millimetres, in RAS coordinates as in NIfTI.
    """

    slices: tuple[Dataset, ...]
    affine: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of columns, rows and slices."""
        return int(self.slices[0].Columns), int(self.slices[0].Rows), len(self.slices)


def read_series(folder: Path, series: str | None = None, ignored_names: Sequence[str] = ()) -> MetaTensor:
    """Read the volume of a folder of DICOM files, (1, columns, rows, slices) float32 in the order of NIfTI.

    Rescale slope and intercept are applied. The attribute `affine`, (4, 4), maps voxel indices to millimetres. The
    arguments and errors are those of `find_stack`.
    """
    import SimpleITK as sitk  # slow to import, and rarely needed

    stack = find_stack(folder, series, ignored_names)
    reader = sitk.ImageSeriesReader()
    reader.SetImageIO("GDCMImageIO")
    reader.SetFileNames([str(path_of(entry)) for entry in stack.slices])
    reader.SetOutputPixelType(sitk.sitkFloat32)  # else the type of the first file, which cuts off other rescale slopes
    try:
        with without_identifiers():
            voxels = sitk.GetArrayFromImage(reader.Execute())
        if voxels.shape[::-1] != stack.shape:
            raise RuntimeError(f"{voxels.shape[::-1]} voxels, but {stack.shape} by Columns, Rows and number of slices")
    except RuntimeError as error:
        for path in map(path_of, stack.slices):  # to name the file
            with library_errors(path), without_identifiers():
                sitk.ReadImage(str(path), imageIO="GDCMImageIO")
        found = f"cannot read the DICOM files ({reason(folder, error)})"
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
        with _readable(path_of(entry)):
            _check_slice(entry)
            if len(slices) > 1:
                _check_alike(entry, slices[0])
    with _readable(folder):
        return _sort(folder, slices)


def patient_id(folder: Path, ignored_names: Sequence[str] = ()) -> str:
    """Return PatientID of the first image in a folder of DICOM files; "" if it is empty or the file is damaged."""
    with suppress(UserError):  # `read_series` reports a damaged file
        return text(header(files_of_kind(folder, "image", ignored_names)[0]), "PatientID")
    return ""


def folder_sha256(folder: Path) -> str:
    """Return the SHA-256 of the images in a folder of DICOM files, which does not depend on the names of the files."""
    digests = sorted(hashlib.sha256(path.read_bytes()).digest() for path in files_of_kind(folder, "image"))
    return hashlib.sha256(b"".join(digests)).hexdigest()


def folder_size(folder: Path) -> int:
    """Return the number of bytes of the images in a folder of DICOM files and in the folders inside it."""
    return sum(path.stat().st_size for path in files_of_kind(folder, "image"))


def header(path: Path) -> Dataset:
    """Read the attributes of a DICOM file that place its slice in a series."""
    import pydicom  # slow to import, and rarely needed

    with _readable(path):
        dataset = pydicom.dcmread(path, defer_size=1024, force=True, specific_tags=list(_ATTRIBUTES))
        _ = dataset.Columns * dataset.Rows  # other objects have none
    return dataset


def path_of(header: Dataset) -> Path:
    """Return the path of the file with a header."""
    return Path(str(header.filename))


def text(header: Dataset, keyword: str) -> str:
    """Return a text as it is stored, or "": names of patients must not depend on the character set of a file."""
    element = header.get_item(keyword)
    return ((element and element.value) or b"").decode("utf-8", "surrogateescape").strip("\0 ")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise a Problem without values of the file if pydicom cannot read it, or finds values of another kind."""
    try:
        with without_identifiers():
            yield
    except UserError:
        raise
    except Exception as error:  # pydicom raises many types of errors for damaged files; the texts may hold values
        found = f"this DICOM file is damaged or holds no image ({type(error).__name__})"
        cure = "copy it again from its source, or leave it out with data.ignored_names"
        raise Problem("damaged DICOM file", path, found, cure) from None


def _check_slice(entry: Dataset) -> None:
    """Raise a Problem if a file is no slice of grey values, or if its pixel data have another length."""
    for keyword, (fits, expected) in _EXPECTED.items():
        value = entry.get(keyword)
        if value not in (None, "") and not fits(value):
            shown = "a table" if keyword == "ModalityLUTSequence" else value
            found = f"{keyword} is {shown}; expected {expected}"
            raise Problem(f"unusable {keyword}", path_of(entry), found, _CONVERT)
    n_bytes = getattr(entry.get_item("PixelData", keep_deferred=True), "length", 0)
    n_expected = -(-entry.Rows * entry.Columns * entry.get("BitsAllocated", 0) // 8)
    syntax = entry.file_meta.get("TransferSyntaxUID")
    if not (syntax and syntax.is_compressed) and n_bytes not in (n_expected, n_expected + n_expected % 2):
        found = f"the pixel data have {n_bytes:,} bytes; expected {n_expected:,} by Rows, Columns and BitsAllocated"
        cure = "copy the file again from its source"
        raise Problem("pixel data of another length", path_of(entry), found, cure)


def _check_alike(entry: Dataset, first: Dataset) -> None:
    """Raise a Problem if two slices of a series differ in size, orientation or pixel spacing, or have no position."""
    for keyword in ("ImagePositionPatient", *_EQUAL):
        if entry.get(keyword) in (None, ""):
            found = f"{keyword} is missing; expected it in each of several slices"
            raise Problem("slice without a position", path_of(entry), found, _REMOVE)
    for keyword, tolerance in _EQUAL.items():
        value, usual = entry[keyword].value, first[keyword].value
        if not np.allclose(np.array(value, dtype=float), np.array(usual, dtype=float), rtol=0, atol=tolerance):
            found = f"{keyword} is {value}, but {usual} in {path_of(first).name}; expected equal values"
            raise Problem("different slices in a series", path_of(entry), found, _REMOVE)


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
    chosen = [uid for uid, name in names.items() if series is None or fnmatch(name.casefold(), series.casefold())]
    if len(chosen) == 1:
        return groups[chosen[0]]
    listed = ", ".join(sorted(f"'{names[uid]}' (slices: {len(group)})" for uid, group in groups.items()))
    fitting = "" if series is None else f" that fits data.dicom_series '{series}' ({len(chosen)} do)"
    found = f"found {len(groups)} DICOM series: {listed}; expected one{fitting}"
    cure = "leave the others out with data.ignored_names"
    if len(set(names.values())) == len(names):
        cure += ", or choose one by its description with data.dicom_series ('*' stands for any characters)"
    raise Problem("several DICOM series", folder, found, cure)


def _sort(folder: Path, slices: Sequence[Dataset]) -> Stack:
    """Sort slices by their position along their normal, and refuse those that are no regular stack.

    A single slice, such as a radiograph, may have no position; then its pixels have 1 mm.
    """
    first = slices[0]
    rows, columns = _numbers(first, "ImageOrientationPatient", (1, 0, 0, 0, 1, 0)).reshape(2, 3)
    row_mm, column_mm = _numbers(first, "PixelSpacing", (1, 1))
    normal = np.cross(rows, columns)
    if (length := np.linalg.norm(normal)) < 0.5:
        found = f"ImageOrientationPatient is {first.ImageOrientationPatient}; expected two directions at a right angle"
        raise Problem("directions without a right angle", path_of(first), found, "export the series again")
    normal /= length
    ordered = sorted(
        slices, key=lambda entry: float(np.dot(_numbers(entry, "ImagePositionPatient", (0, 0, 0)), normal))
    )
    positions = np.array([_numbers(entry, "ImagePositionPatient", (0, 0, 0)) for entry in ordered])
    if len(ordered) > 1:
        step = (positions[-1] - positions[0]) / (len(ordered) - 1)
        _check_regular(folder, [path_of(entry).name for entry in ordered], positions @ normal)
        shifts = (positions - positions[0]) - np.outer((positions - positions[0]) @ normal, normal)
        shift_mm = np.linalg.norm(shifts, axis=1).max()
        if shift_mm > MAX_SHEAR * min(row_mm, column_mm):
            found = f"the slices are shifted along their plane, by {shift_mm:.3g} mm in all (a tilted gantry)"
            raise Problem("tilted gantry", folder, f"{found}; expected a stack at a right angle", _CONVERT)
    else:
        thickness_mm = _numbers(first, "SpacingBetweenSlices", first.get("SliceThickness") or 1)
        step = normal * (abs(float(thickness_mm)) or 1.0)
    affine = np.eye(4)
    affine[:3, :3] = np.stack([rows * column_mm, columns * row_mm, step], axis=1)
    affine[:3, 3] = positions[0]
    return Stack(tuple(ordered), LPS_TO_RAS @ affine)


def _numbers(entry: Dataset, keyword: str, default: object) -> np.ndarray:
    """Return the numbers of an attribute; `default` if the file lacks it."""
    value = entry.get(keyword)
    return np.array(default if value in (None, "") else value, dtype=float)


def _check_regular(folder: Path, names: Sequence[str], heights_mm: np.ndarray) -> None:
    """Refuse slices at the same position, and slices at unequal distances, as where one is missing."""
    gaps = np.diff(heights_mm)
    usual = float(np.median(gaps))
    index = int(gaps.argmin())
    if gaps[index] <= POSITION_TOLERANCE * usual or usual == 0:
        found = f"{names[index]} and {names[index + 1]} lie at the same position; expected one slice per position"
        cure = "leave copies, or all but one echo, b-value or time, out with data.ignored_names"
        raise Problem("repeated slice", folder, found, cure)
    regular = np.linspace(heights_mm[0], heights_mm[-1], len(heights_mm))
    if np.abs(heights_mm - regular).max() > POSITION_TOLERANCE * usual:
        index = int(np.abs(gaps - usual).argmax())
        found = f"the distance of {names[index]} and {names[index + 1]} is {gaps[index]:.4g} mm"
        expected = f"expected {usual:.4g} mm as usual"
        raise Problem(
            "unequal distances of slices", folder, f"{found}; {expected}", f"add missing slices, or {_REMOVE}"
        )


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
