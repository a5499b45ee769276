"""The original collections of prostate MRI, and how a case is written for the dataset `prostate`.

PROMISE12 (Litjens et al., 2014): T2-weighted MRI of four hospitals. 50 training cases, each with CaseNN.mhd and
CaseNN_segmentation.mhd and their .raw files. The three zip files need 7z; `unzip` fails. The files do not name the
hospital; the numbers below are those of https://github.com/neerakara/BWCR (data_prostate_promise.py), and give as many
cases of UCL, BIDMC and HK as the collection of MS-Net and SAML has.

NCI-ISBI 2013 (Bloch et al., TCIA): images are DICOM series, COLLECTION/PATIENT/STUDY/SERIES/*.dcm with PATIENT such as
Prostate3T-01-0001 or ProstateDx-01-0001; masks are Training|Test|Leaderboard/PATIENT.nrrd with 1 and 2 for two zones.
Known traps, by data_prostate_nci.py of BWCR, which quotes TCIA:

- the mask of ProstateDx-01-0006 is called ProstateDx-01-0006_correctedLabels.nrrd, others may end with _truth;
- the mask of ProstateDx-01-0055 has 23 slices, its image 34, and that of ProstateDx-01-0082 has another pixel size;
  TCIA: "the labels are properly spatially placed". Masks are therefore placed by their positions in millimetres.

I2CVB (Lemaitre et al., 2015): the parts of the archives of https://zenodo.org/record/162231 are joined
(`cat siemens-3t* | tar xz`) and give the folders GE (1.5 T, 21 patients) and Siemens (3 T, 19 patients), each with
Patient NNN/T2W/*.dcm and Patient NNN/GT/prostate/*.dcm. The collection of MS-Net and SAML has 19 patients of I2CVB. In
Patient 428260, a slice of the mask is missing.

Layouts and traps are also in the README of https://github.com/NVIDIA/NVFlare (examples/advanced/prostate).
"""

from __future__ import annotations

import gzip
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from monai.data import MetaTensor

from medfed.core.errors import UserError
from medfed.images import dicom, pairs, reading
from medfed.preparation.prepare import Collection

MAX_VOLUME_CHANGE = 0.1  # of the mask's volume, when it is resampled
PROMISE12_CASES = {
    "UCL": (1, *range(26, 38)),
    "BIDMC": (0, *range(2, 13)),
    "HK": range(38, 50),
    "RUNMC": range(13, 26),
}


def _promise12_site(name: str) -> str:
    return next(site for site, numbers in PROMISE12_CASES.items() if int(name[-2:]) in numbers)


def _promise12_files(site: str, name: str, image: Path, mask: Path) -> dict[str, bytes]:
    if site == "RUNMC":
        raise UserError("overlaps with the NCI-ISBI challenge, from which RUNMC is taken")
    labels = reading.read_labels(mask, [])
    return pair_as_nifti(site, f"Case{name[-2:]}", reading.read_volume(image), labels, {0, 1}, mask)


def _nci_isbi_site(name: str) -> str:
    return "RUNMC" if name.lower().startswith("prostate3t") else "BMC"


def _nci_isbi_files(site: str, name: str, series: Path, mask: Path) -> dict[str, bytes]:
    _, group, number = name.split("-")
    labels = reading.read_labels(mask, [])
    return pair_as_nifti(site, f"Case{group}{number}", dicom.read_series(series), labels, {0, 1, 2}, mask)


def _i2cvb_files(site: str, name: str, series: Path, mask_series: Path) -> dict[str, bytes]:
    scanner, _, patient = name.partition("/")
    if scanner.lower() != "siemens":
        raise UserError(f"lies in the folder {scanner}; only patients in Siemens are used")
    image, mask = dicom.read_series(series), dicom.read_series(mask_series)
    if image.shape[-1] != mask.shape[-1]:
        raise UserError(f"the mask has {mask.shape[-1]} slices, the image {image.shape[-1]}; a slice is missing")
    return pair_as_nifti(site, f"Case{patient[len('Patient ') :]}", image, mask, {0, int(mask.max())}, mask_series)


def pair_as_nifti(
    site: str, name: str, image: MetaTensor, mask: MetaTensor, labels: set[int], path: Path
) -> dict[str, bytes]:
    """Return the image and the mask on its grid as files; UserError if the mask has other labels or does not fit."""
    values = reading.label_values(mask)
    if not labels.issuperset(values):
        expected = reading.format_values(sorted(labels))
        raise UserError(f"the mask has the labels {reading.format_values(values)}; expected {expected}")
    marked = MetaTensor((mask.as_tensor() > 0).to(torch.uint8), affine=mask.affine, meta={"label_values": [0, 1]})
    if not marked.any():
        raise UserError("the mask marks nothing")
    try:
        pairs.check_pair(path, image, path, marked, ignore_geometry=False)
        fitted = marked
    except UserError:
        fitted = pairs.resample_mask(path, image, path, marked)
        before, after = (float(m.sum()) * abs(np.linalg.det(m.affine[:3, :3].numpy())) for m in (marked, fitted))
        if abs(after - before) > MAX_VOLUME_CHANGE * before:
            raise UserError(
                f"a part of the mask lies outside the image, on whose voxels it has {after / before:.0%} of its volume"
            ) from None
    return {
        f"{site}/{name}.nii.gz": _nifti(image.numpy()[0], image.affine.numpy()),
        f"{site}/{name}_segmentation.nii.gz": _nifti(fitted.numpy()[0].astype(np.uint8), image.affine.numpy()),
    }


def _nifti(voxels: np.ndarray, affine: np.ndarray) -> bytes:
    """Return a compressed NIfTI file (H, W, D); whole numbers are stored as integers."""
    if voxels.dtype != np.uint8 and (voxels == voxels.round()).all() and np.abs(voxels).max() < 1 << 15:
        voxels = voxels.astype(np.int16)
    return gzip.compress(nib.Nifti1Image(voxels, affine).to_bytes(), compresslevel=6, mtime=0)


COLLECTIONS = (
    Collection(
        title="PROMISE12",
        layout="CaseNN.mhd with CaseNN_segmentation.mhd and their .raw files",
        # The folder belongs to the name, because the cases of the challenge's test have the same numbers.
        parts={
            "image": r"(?P<name>[^/]*/case[0-4]\d)\.mhd",
            "mask": r"(?P<name>[^/]*/case[0-4]\d)_segmentation\.mhd",
        },
        site=_promise12_site,
        convert=_promise12_files,
        notes=(
            "the hospitals of PROMISE12 follow from the case numbers, as data_prostate_promise.py of "
            "https://github.com/neerakara/BWCR lists them; the files do not name them",
            "volumes keep their size and all slices; the collection of MS-Net and SAML was resized to 384 x 384 "
            "pixels, so that scores may differ",
        ),
    ),
    Collection(
        title="NCI-ISBI 2013",
        layout="PATIENT/STUDY/SERIES/*.dcm and PATIENT.nrrd, PATIENT such as Prostate3T-01-0001 or ProstateDx-01-0001",
        parts={
            "image": r"(?P<name>Prostate(3T|Dx)-\d\d-\d{4})(/.*)?",
            "mask": r"(?P<name>Prostate(3T|Dx)-\d\d-\d{4})(_correctedLabels|_truth)?\.nrrd",
        },
        site=_nci_isbi_site,
        convert=_nci_isbi_files,
        notes=(
            "masks of NCI-ISBI are placed by their positions in millimetres; ProstateDx-01-0055 has fewer slices in "
            "the mask",
            "the collection of MS-Net and SAML has 30 cases of RUNMC and 30 of BMC, as many as the part Training has; "
            "the parts Test and Leaderboard add 10 each",
            "RUNMC may share patients with Task05_Prostate of the Medical Segmentation Decathlon; do not pretrain on "
            "that collection and test on RUNMC",
        ),
    ),
    Collection(
        title="I2CVB",
        layout="Siemens/Patient NNN/T2W/*.dcm and Siemens/Patient NNN/GT/prostate/*.dcm",
        parts={
            "image": r"(?P<name>[^/]*/patient[ _]\d+)/t2w",
            "mask": r"(?P<name>[^/]*/patient[ _]\d+)/gt/prostate",
        },
        site=lambda name: "I2CVB",
        convert=_i2cvb_files,
        notes=(
            "of I2CVB, only the folder Siemens (3 T) is used: the collection of MS-Net and SAML has as many patients "
            "as it; GE (1.5 T) is another scanner",
        ),
    ),
)
