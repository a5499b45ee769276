"""DICOM series and DICOM SEG objects of a few small slices, written with pydicom and highdicom."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

MR = "1.2.840.10008.5.1.4.1.1.4"
EMPTY = ("PatientName", "PatientBirthDate", "PatientSex", "AccessionNumber", "StudyID", "StudyDate", "StudyTime")
EMPTY += ("ReferringPhysicianName", "Manufacturer")
SAME_UIDS = {"SeriesInstanceUID": "1.2.3", "StudyInstanceUID": "1.2.4", "SOPInstanceUID": "1.2.5"}
SAME_UIDS |= {"FrameOfReferenceUID": "1.2.6"}
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


def oblique_affine(spacing_mm: Sequence[float] = (0.5, 0.7, 3.0), degrees: float = 20.0) -> np.ndarray:
    """Return an affine (LPS) whose axes are turned about two axes of the patient."""
    a, b = np.radians(degrees), np.radians(degrees / 2)
    about_z = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    about_x = np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    affine = np.eye(4)
    affine[:3, :3] = about_x @ about_z @ np.diag(spacing_mm)
    affine[:3, 3] = 11.0, -7.0, 31.0
    return affine


def volume(shape: tuple[int, int, int] = (16, 12, 5), seed: int = 0) -> np.ndarray:
    """Return (columns, rows, slices) of different whole numbers, so that no flip or exchange of axes is a symmetry."""
    return np.random.default_rng(seed).permutation(int(np.prod(shape))).reshape(shape).astype(np.uint16)


def write_series(
    folder: Path,
    voxels: np.ndarray,
    affine: np.ndarray | None = None,
    *,
    names: str = "IM{:04d}.dcm",
    slices: Sequence[int] | None = None,
    **tags: Any,
) -> list[Dataset]:
    """Write a series of one file per slice and return the slices; the files' names are in another order.

    Args:
        voxels: (columns, rows, slices), whole numbers from 0 to 65535.
        affine: (4, 4), LPS; `oblique_affine` if None.
        slices: the slices to write; None writes all.
        tags: values of further attributes, such as PatientID; the same in every file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    affine = oblique_affine() if affine is None else affine
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    directions = affine[:3, :3] / spacing
    uids = ("SeriesInstanceUID", "StudyInstanceUID", "FrameOfReferenceUID")
    common = {keyword: generate_uid() for keyword in uids} | dict.fromkeys(EMPTY, "")
    datasets = []
    for index in range(voxels.shape[2]) if slices is None else slices:
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID, meta.TransferSyntaxUID = tags.get("SOPClassUID", MR), ExplicitVRLittleEndian
        meta.MediaStorageSOPInstanceUID = generate_uid()
        dataset = Dataset()
        dataset.file_meta = meta
        values = {
            "SOPClassUID": MR,
            "SOPInstanceUID": meta.MediaStorageSOPInstanceUID,
            "Modality": "MR",
            "PatientID": "7",
            "SeriesNumber": 1,
            "InstanceNumber": 1,
            "ImageType": ["ORIGINAL", "PRIMARY"],
            "SliceThickness": float(spacing[2]),
            "Columns": voxels.shape[0],
            "Rows": voxels.shape[1],
            "SamplesPerPixel": 1,
            "PhotometricInterpretation": "MONOCHROME2",
            "BitsAllocated": 16,
            "BitsStored": 16,
            "HighBit": 15,
            "PixelRepresentation": 0,
            "PixelSpacing": [float(spacing[1]), float(spacing[0])],
            "ImageOrientationPatient": [float(f"{x:.9g}") for x in (*directions[:, 0], *directions[:, 1])],
            "ImagePositionPatient": [float(f"{x:.9g}") for x in affine[:3, :3] @ (0, 0, index) + affine[:3, 3]],
            **common,
            **tags,
        }
        for keyword, value in values.items():
            setattr(dataset, keyword, value)
        dataset.PixelData = np.ascontiguousarray(voxels[:, :, index].T.astype(np.uint16)).tobytes()
        dataset.save_as(folder / names.format(97 * (index + 1) % 101), enforce_file_format=True)
        datasets.append(dataset)
    return datasets


def write_nifti(path: Path, voxels: np.ndarray, affine: np.ndarray | None = None) -> None:
    """Write (columns, rows, slices) as NIfTI; the affine is LPS, `oblique_affine` if None."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(voxels, LPS_TO_RAS @ (oblique_affine() if affine is None else affine)), path)


def write_segmentation(path: Path, datasets: Sequence[Dataset], masks: dict[str, np.ndarray], **options: Any) -> None:
    """Write a DICOM SEG object of these slices with one segment per mask (columns, rows, slices), numbered from 1."""
    import highdicom
    from pydicom.sr.codedict import codes

    segments = [
        highdicom.seg.SegmentDescription(number, label, codes.SCT.Organ, codes.SCT.Prostate, "MANUAL")
        for number, label in enumerate(masks, 1)
    ]
    pixels = np.stack([mask.transpose(2, 1, 0) for mask in masks.values()], axis=-1).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    arguments = {"segmentation_type": "BINARY", **options}
    highdicom.seg.Segmentation(
        datasets,
        pixels,
        segment_descriptions=segments,
        series_instance_uid=generate_uid(),
        series_number=9,
        sop_instance_uid=generate_uid(),
        instance_number=1,
        manufacturer="m",
        manufacturer_model_name="m",
        software_versions="1",
        device_serial_number="1",
        **arguments,
    ).save_as(path)
