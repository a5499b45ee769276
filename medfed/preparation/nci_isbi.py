"""NCI-ISBI 2013 (Bloch et al., TCIA): prostate MRI of RUNMC (Prostate-3T) and BMC (PROSTATE-DIAGNOSIS).

Layout, by the README of https://github.com/NVIDIA/NVFlare (examples/advanced/prostate): images are DICOM series,
COLLECTION/PATIENT/STUDY/SERIES/*.dcm with PATIENT such as Prostate3T-01-0001 or ProstateDx-01-0001; masks are
Training|Test|Leaderboard/PATIENT.nrrd with 1 and 2 for the two zones. Each hospital has 30 training, 5 test and 5
leaderboard cases; the collection of MS-Net and SAML has 30 of each hospital.

Known traps, by the same README and by data_prostate_nci.py of https://github.com/neerakara/BWCR, which quotes TCIA:

- the mask of ProstateDx-01-0006 is called ProstateDx-01-0006_correctedLabels.nrrd, others may end with _truth;
- the mask of ProstateDx-01-0055 has 23 slices, its image 34; TCIA: "the labels are properly spatially placed". Masks
  are therefore placed by their positions in millimetres, and a case whose mask leaves its image is left out;
- the mask of ProstateDx-01-0082 has another pixel size than its image.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from medfed.core.errors import UserError
from medfed.images import dicom, reading
from medfed.preparation.entry import Download, Entry, files_in, walk
from medfed.preparation.volumes import pair_as_nifti

TITLE = "NCI-ISBI 2013"
LAYOUT = "PATIENT/STUDY/SERIES/*.dcm and PATIENT.nrrd, PATIENT such as Prostate3T-01-0001 or ProstateDx-01-0001"
SITES = {"Prostate3T": "RUNMC", "ProstateDx": "BMC"}
NOTES = (
    "masks of NCI-ISBI are placed by their positions in millimetres; ProstateDx-01-0055 has fewer slices in the mask",
    "the collection of MS-Net and SAML has 30 cases of RUNMC and 30 of BMC, as many as the part Training has; the "
    "parts Test and Leaderboard add 10 each",
    "RUNMC may share patients with Task05_Prostate of the Medical Segmentation Decathlon; do not pretrain on that "
    "collection and test on RUNMC",
)
_PATIENT = re.compile(r"(Prostate3T|ProstateDx)-(\d\d)-(\d{4})")
_MASK = re.compile(rf"({_PATIENT.pattern})(_correctedLabels|_truth)?\.nrrd", re.IGNORECASE)


def find(source: Path) -> Download | None:
    """The cases that have a mask in a source; None if there is no mask of this challenge."""
    masks: dict[str, Path] = {}
    series: dict[str, list[Path]] = {}
    repeated: list[Entry] = []
    for folder in walk(source):
        paths = files_in(folder)
        for path in paths:
            if not (match := _MASK.fullmatch(path.name)):
                continue
            if match[1] in masks:
                repeated.append(Entry(SITES[match[2]], path.name, None, "a second mask of the same patient"))
            masks.setdefault(match[1], path)
        patient = next((part for part in reversed(folder.parts) if _PATIENT.fullmatch(part)), None)
        if patient and any(path.suffix.lower() == ".dcm" for path in paths):
            series.setdefault(patient, []).append(folder)
    entries = [_entry(patient, mask, series.get(patient, [])) for patient, mask in sorted(masks.items())]
    return Download(TITLE, (*entries, *repeated), NOTES) if masks else None


def _entry(patient: str, mask: Path, folders: list[Path]) -> Entry:
    """One patient of the download; without exactly one DICOM series the patient is left out."""
    match = _PATIENT.fullmatch(patient)
    assert match, "the pattern of masks contains that of patients"
    site = SITES[match[1]]
    if len(folders) != 1:
        return Entry(site, patient, None, f"{len(folders)} folders with DICOM files of this patient; expected one")
    return Entry(site, patient, partial(_files, site, f"Case{match[2]}{match[3]}", folders[0], mask))


def _files(site: str, name: str, folder: Path, mask: Path) -> Mapping[str, bytes]:
    """The content of the case's NIfTI files, by path; UserError for unexpected labels."""
    labels = reading.read_labels(mask, [])
    values = reading.label_values(labels)
    if not set(values) <= {0, 1, 2}:
        raise UserError(f"the mask has the labels {reading.format_values(values)}; expected 0, 1 and 2")
    return pair_as_nifti(site, name, dicom.read_series(folder), labels, mask)
