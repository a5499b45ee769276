"""Read a folder of DICOM files as one volume: the slices of one series, sorted by their position in the patient.

SimpleITK reads the files (without pydicom); this module decides which files belong to the volume, and refuses series
that are not one regular stack of slices. Error messages name files; they are for the hospital's own eyes (`dicom_names`
makes the names that may leave it).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from monai.data import MetaTensor

from medfed.core.errors import UserError
from medfed.images import nifti
from medfed.images.dicom_files import files_of_kind

POSITION_TOLERANCE = 0.1  # slices may lie this fraction of a slice distance away from a regular stack
DIRECTION_TOLERANCE = 1e-3  # of each direction cosine, and of the pixel spacing in mm
MAX_SHEAR = 0.5  # shift of the last slice along its plane in pixels; more is a scanner with a tilted gantry
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
_ENHANCED = tuple(f"1.2.840.10008.5.1.4.1.1.{end}" for end in ("2.1", "4.1", "4.3", "4.4", "117.1", "128.1", "130"))
_DEFLATED = b"1.2.840.10008.1.2.1.99"  # the transfer syntax, in the first group of elements
_TRANSFER_SYNTAX = re.compile(rb"\x02\x00\x10\x00UI..([0-9.]+[\x00 ]?)", re.DOTALL)
_NATIVE: dict[bytes, Literal["little", "big"]] = {  # the transfer syntaxes without compression
    b"1.2.840.10008.1.2": "little",
    b"1.2.840.10008.1.2.1": "little",
    b"1.2.840.10008.1.2.2": "big",
}
_MAX_FIRST_GROUP = 2048
_MODALITY_LUT = re.compile(  # the sequence with its type, or its length and its first item
    rb"\x28\x00\x00\x30(?:SQ|....\xfe\xff\x00\xe0)|\x00\x28\x30\x00SQ", re.DOTALL
)


@dataclass(frozen=True)
class Header:
    """The part of a DICOM file's header that places its slice in a series; texts are "" if the file lacks them.

    Args:
        patient: PatientID.
        study, series, frame_of_reference: UIDs.
        description: SeriesDescription.
        object_class: SOPClassUID.
        photometric: PhotometricInterpretation.
        size: (Columns, Rows).
        position: ImagePositionPatient in mm; empty if the file lacks it.
        orientation: ImageOrientationPatient, the direction of a row and that of a column; empty if the file lacks it.
        spacing_mm: PixelSpacing, the distance of rows and that of columns; empty if the file lacks it.
        thickness_mm: SpacingBetweenSlices or SliceThickness; 1 if the file lacks both.
    """

    path: Path
    patient: str
    birth_date: str
    sex: str
    study: str
    series: str
    frame_of_reference: str
    description: str
    object_class: str
    image_type: str
    photometric: str
    n_frames: int
    samples: int
    bits_allocated: int
    size: tuple[int, int]
    position: tuple[float, ...]
    orientation: tuple[float, ...]
    spacing_mm: tuple[float, ...]
    thickness_mm: float


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
    stack = find_stack(folder, series, ignored_names)
    for entry in stack.slices:
        _check_content(entry)
    import SimpleITK as sitk  # slow to import, and rarely needed

    reader = sitk.ImageSeriesReader()
    reader.SetImageIO("GDCMImageIO")
    reader.SetFileNames([str(header.path) for header in stack.slices])
    reader.SetOutputPixelType(sitk.sitkFloat32)  # else the type of the first file, which cuts off other rescale slopes
    try:
        with _quiet_itk():
            voxels = sitk.GetArrayFromImage(reader.Execute())
    except RuntimeError as error:
        last_line = str(error).strip().rpartition("\n")[2]
        raise UserError(
            f"{folder}: cannot read the DICOM files ({last_line}); check them, or copy them again from their source"
        ) from None
    nifti.check_affine(folder, stack.affine)
    image = torch.from_numpy(np.ascontiguousarray(voxels.transpose(2, 1, 0)))[None]
    return MetaTensor(image, affine=torch.from_numpy(stack.affine))


def find_stack(folder: Path, series: str | None = None, ignored_names: Sequence[str] = ()) -> Stack:
    """Choose the series of a folder, and of the folders inside it, and sort its slices. Only headers are read.

    `series` is the SeriesDescription, in which a `*` stands for any characters; None expects one series. UserError if
    not exactly one series fits, or if its slices are no regular stack.
    """
    slices = _choose_series(folder, [header(path) for path in files_of_kind(folder, "image", ignored_names)], series)
    for check in (_check_objects, _check_alike):
        check(slices)
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
    """Read the header of a DICOM file, from a cache while the file does not change."""
    return _header(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=1 << 16)
def _header(path: Path, _changed_ns: int) -> Header:
    """Read the header; `_changed_ns`, when the file was changed last, is a part of the cache's key."""
    import SimpleITK as sitk  # slow to import, and rarely needed

    with open(path, "rb") as file:
        if _DEFLATED in file.read(2048):
            raise UserError(
                f"{path}: this DICOM file is compressed as a whole (deflated), so its size is known only after "
                "decompressing it; expected another transfer syntax; convert it, for example with dcmconv +te"
            )
    reader = sitk.ImageFileReader()
    reader.SetImageIO("GDCMImageIO")
    reader.SetFileName(str(path))
    try:
        with _quiet_itk():
            reader.ReadImageInformation()
    except RuntimeError:
        raise UserError(
            f"{path}: this DICOM file is damaged or holds no image; copy it again from its source, or leave it out "
            "with data.ignored_names"
        ) from None
    keys = set(reader.GetMetaDataKeys())

    def text(tag: str) -> str:
        """The value of a tag such as "0010|0020"; "" without one."""
        return reader.GetMetaData(tag).strip("\0 ") if tag in keys else ""

    def numbers(tag: str, n: int) -> tuple[float, ...]:
        """The `n` numbers of a tag; () if the file has another count or no numbers."""
        try:
            values = tuple(map(float, text(tag).split("\\")))
        except ValueError:
            return ()
        return values if len(values) == n and np.isfinite(values).all() else ()

    thickness = numbers("0018|0088", 1) or numbers("0018|0050", 1) or (1.0,)
    return Header(
        path=path,
        patient=text("0010|0020"),
        birth_date=text("0010|0030"),
        sex=text("0010|0040"),
        study=text("0020|000d"),
        series=text("0020|000e"),
        frame_of_reference=text("0020|0052"),
        description=text("0008|103e"),
        object_class=text("0008|0016"),
        image_type=text("0008|0008").upper(),
        photometric=text("0028|0004"),
        n_frames=int((numbers("0028|0008", 1) or (1,))[0]),
        samples=int((numbers("0028|0002", 1) or (1,))[0]),
        bits_allocated=int((numbers("0028|0100", 1) or (0,))[0]),
        size=(reader.GetSize()[0], reader.GetSize()[1]),
        position=numbers("0020|0032", 3),
        orientation=numbers("0020|0037", 6),
        spacing_mm=numbers("0028|0030", 2),
        thickness_mm=abs(thickness[0]) or 1.0,
    )


def _choose_series(folder: Path, headers: Sequence[Header], series: str | None) -> list[Header]:
    """Return the slices of the only series, or of the only one that fits the setting."""
    if not headers:
        raise UserError(f"{folder}: no DICOM image in this folder; expected the slices of a series; copy them again")
    if len({entry.patient for entry in headers}) > 1:
        raise UserError(
            f"{folder}: the DICOM files have different values of PatientID; expected the images of one patient; put "
            "those of the other patient into another folder"
        )
    by_uid: dict[str, list[Header]] = {}
    for entry in headers:
        by_uid.setdefault(entry.series, []).append(entry)
    chosen = [
        group
        for group in by_uid.values()
        if series is None or fnmatch(group[0].description.casefold(), series.casefold())
    ]
    if len(chosen) == 1:
        return chosen[0]
    listed = ", ".join(
        sorted(
            f"'{group[0].description}' ({len(group)} slice{'' if len(group) == 1 else 's'})"
            for group in by_uid.values()
        )
    )
    if series is not None:
        raise UserError(
            f"{folder}: {len(chosen)} series fit data.dicom_series '{series}'; expected exactly one; found {listed}; "
            "correct the setting ('*' stands for any characters), or leave files or folders out with data.ignored_names"
        )
    raise UserError(
        f"{folder}: found {len(by_uid)} DICOM series: {listed}; expected one; choose it by its description, such as "
        f"data.dicom_series: '{max(by_uid.values(), key=len)[0].description}', or leave the others out with "
        "data.ignored_names"
    )


def _check_objects(slices: Sequence[Header]) -> None:
    """Refuse files that are no grey slice of their own: multi-frame files, localisers, colour and inverted images."""
    for entry in slices:
        if entry.n_frames > 1 or entry.object_class in _ENHANCED:
            raise UserError(
                f"{entry.path}: this is a multi-frame DICOM file ({entry.n_frames} frames); expected one file per "
                "slice; convert it to NIfTI (with dcm2niix), or export it again in the classic format"
            )
        if "LOCALIZER" in entry.image_type.split("\\"):
            raise UserError(
                f"{entry.path}: this is a localiser (scout) by its ImageType; expected slices of the volume; remove "
                "it, or leave it out with data.ignored_names"
            )
        if entry.photometric not in ("", "MONOCHROME2"):
            raise UserError(
                f"{entry.path}: PhotometricInterpretation is {entry.photometric}; expected MONOCHROME2, grey values "
                "that grow with brightness; convert the series to NIfTI (with dcm2niix)"
            )
        if entry.samples != 1:
            raise UserError(
                f"{entry.path}: SamplesPerPixel is {entry.samples}; expected 1, a grey value for each pixel; convert "
                "the series to NIfTI (with dcm2niix)"
            )


def _check_content(entry: Header) -> None:
    """Refuse a slice with a table of intensities, which SimpleITK ignores, or with pixel data of another length."""
    content = entry.path.read_bytes()
    if _MODALITY_LUT.search(content):
        raise UserError(
            f"{entry.path}: the stored values become intensities by a table (ModalityLUTSequence); expected "
            "RescaleSlope and RescaleIntercept; export the series again, or convert it with a program that applies the "
            "table"
        )
    match = _TRANSFER_SYNTAX.search(content[:_MAX_FIRST_GROUP])
    if match is None or (byte_order := _NATIVE.get(match[1].rstrip(b"\0 "))) is None or not entry.bits_allocated:
        return  # compressed, or a file without the first group of elements
    expected = -(-entry.size[0] * entry.size[1] * entry.samples * entry.bits_allocated // 8)
    expected += expected % 2  # the length of an element is even
    length = expected.to_bytes(4, byte_order)
    tag = b"\x7f\xe0\x00\x10" if byte_order == "big" else b"\xe0\x7f\x10\x00"
    if not any(tag + kind + length in content for kind in (b"OW\0\0", b"OB\0\0", b"")):
        raise UserError(
            f"{entry.path}: the pixel data have another length than {expected:,} bytes, which Rows, Columns and "
            "BitsAllocated give; copy the file again from its source"
        )


def _check_alike(slices: Sequence[Header]) -> None:
    """Refuse slices of different size, orientation or pixel spacing, and several slices without a position."""
    first = slices[0]
    for entry in slices if len(slices) > 1 else ():
        if not (entry.position and entry.orientation and entry.spacing_mm):
            raise UserError(
                f"{entry.path}: ImagePositionPatient, ImageOrientationPatient or PixelSpacing is missing, so the "
                "place of this slice is unknown; export the series again, or leave the file out with data.ignored_names"
            )
        if entry.size != first.size:
            raise UserError(
                f"{entry.path}: the slice has {entry.size[0]} x {entry.size[1]} pixels, but {first.path.name} of the "
                f"same series has {first.size[0]} x {first.size[1]}; expected equal sizes; remove the slices that do "
                "not belong to the volume"
            )
        if not np.allclose(entry.orientation, first.orientation, rtol=0, atol=DIRECTION_TOLERANCE):
            raise UserError(
                f"{entry.path}: the slice has another orientation than {first.path.name} of the same series; expected "
                "parallel slices; remove the slices that do not belong to the volume"
            )
        if not np.allclose(entry.spacing_mm, first.spacing_mm, rtol=0, atol=DIRECTION_TOLERANCE):
            raise UserError(
                f"{entry.path}: PixelSpacing is {entry.spacing_mm} mm, but {first.path.name} of the same series has "
                f"{first.spacing_mm} mm; expected equal values; remove the slices that do not belong to the volume"
            )


def _sort(folder: Path, slices: Sequence[Header]) -> Stack:
    """Sort slices by their position along their normal, and refuse those that are no regular stack."""
    first = slices[0]
    rows, columns = np.array(first.orientation or (1, 0, 0, 0, 1, 0), dtype=float).reshape(2, 3)
    normal = np.cross(rows, columns)
    if (length := np.linalg.norm(normal)) < 0.5:
        raise UserError(
            f"{first.path}: ImageOrientationPatient is {first.orientation}; expected two directions at a "
            "right angle; export the series again"
        )
    normal /= length
    ordered = sorted(slices, key=lambda entry: float(np.dot(entry.position or (0, 0, 0), normal)))
    row_mm, column_mm = first.spacing_mm or (1.0, 1.0)
    positions = np.array([entry.position or (0.0, 0.0, 0.0) for entry in ordered])
    step = normal * first.thickness_mm
    if len(ordered) > 1:
        step = (positions[-1] - positions[0]) / (len(ordered) - 1)
        _check_regular(folder, ordered, positions @ normal)
        shift_mm = np.linalg.norm(
            (positions - positions[0]) - np.outer((positions - positions[0]) @ normal, normal), axis=1
        ).max()
        if shift_mm > MAX_SHEAR * min(row_mm, column_mm):
            raise UserError(
                f"{folder}: the slices are shifted along their plane, by {shift_mm:.3g} mm from the first to the last "
                "(a tilted gantry); expected a stack at a right angle; convert the series to NIfTI (with dcm2niix)"
            )
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
        raise UserError(
            f"{slices[index + 1].path}: the slice lies at the same position as {slices[index].path.name}; expected one "
            "slice per position; leave copies, or all but one echo, b-value or time, out with data.ignored_names"
        )
    regular = np.linspace(heights_mm[0], heights_mm[-1], len(heights_mm))
    if np.abs(heights_mm - regular).max() > POSITION_TOLERANCE * usual:
        index = int(np.abs(gaps - usual).argmax())
        raise UserError(
            f"{folder}: the distance of {slices[index].path.name} and {slices[index + 1].path.name} is "
            f"{gaps[index]:.4g} mm, but {usual:.4g} mm is usual in this series; expected equal distances; add the "
            "missing slices, or remove those that do not belong to the volume"
        )


@contextmanager
def _quiet_itk() -> Iterator[None]:
    """Silence ITK's warnings, which contain the names of files and thus of patients."""
    import SimpleITK as sitk

    was_shown = sitk.ProcessObject.GetGlobalWarningDisplay()
    sitk.ProcessObject.SetGlobalWarningDisplay(False)
    try:
        yield
    finally:
        sitk.ProcessObject.SetGlobalWarningDisplay(was_shown)
