"""I2CVB (Lemaitre et al., 2015): multi-parametric prostate MRI; the T2-weighted series of the 3 T scanner is used.

Layout, by the README and data_conversion_I2CVB.sh of https://github.com/NVIDIA/NVFlare (examples/advanced/prostate):
the parts of the archives of https://zenodo.org/record/162231 are joined (`cat siemens-3t* | tar xz`) and give the
folders GE (1.5 T, 21 patients) and Siemens (3 T, 19 patients), each with Patient NNN/T2W/*.dcm and
Patient NNN/GT/prostate/*.dcm.
The collection of MS-Net and SAML has 19 patients of I2CVB, as many as the folder Siemens; GE is left out.

Known trap, by the same README: in Patient 428260, a slice of the mask is missing. Every case whose mask has another
number of slices than its image is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from medfed.core.errors import UserError
from medfed.images import dicom, reading
from medfed.images.file_names import folded
from medfed.preparation.entry import Download, Entry, walk
from medfed.preparation.volumes import pair_as_nifti

TITLE = "I2CVB"
LAYOUT = "Siemens/Patient NNN/T2W/*.dcm and Siemens/Patient NNN/GT/prostate/*.dcm"
SITE = "I2CVB"
NOTES = (
    "of I2CVB, only the folder Siemens (3 T) is used: the collection of MS-Net and SAML has as many patients as it; GE "
    "(1.5 T) is another scanner",
)
_PATIENT = re.compile(r"patient[ _](\d+)", re.IGNORECASE)


def find(source: Path) -> Download | None:
    """The patients in all folders called Siemens or GE; None if there is no patient with a T2-weighted image."""
    entries = [
        _entry(folder, match[1])
        for folder in walk(source)
        if (match := _PATIENT.fullmatch(folder.name)) and find_subfolder(folder, "t2w")
    ]
    return Download(TITLE, tuple(entries), NOTES) if entries else None


def _entry(folder: Path, number: str) -> Entry:
    """One patient of the download; only patients of the Siemens scanner with a mask are used."""
    truth = find_subfolder(folder, "gt")
    image, mask = find_subfolder(folder, "t2w"), find_subfolder(truth, "prostate") if truth else None
    scanner = folder.parent.name
    if scanner.casefold() != "siemens":
        return Entry(SITE, folder.name, None, f"lies in the folder {scanner}; only patients in Siemens are used")
    if image is None or mask is None:
        return Entry(SITE, folder.name, None, "no folder GT/prostate with a mask")
    return Entry(SITE, folder.name, partial(_files, f"Case{number}", image, mask))


def _files(name: str, image_folder: Path, mask_folder: Path) -> Mapping[str, bytes]:
    """The content of the case's NIfTI files, by path; UserError if image and mask do not fit."""
    image, mask = dicom.read_series(image_folder), dicom.read_series(mask_folder)
    if image.shape[-1] != mask.shape[-1]:
        raise UserError(f"the mask has {mask.shape[-1]} slices, the image {image.shape[-1]}; a slice is missing")
    values = reading.label_values(mask)
    if len(values) > 2 or values[0] != 0:
        raise UserError(f"the mask has the labels {reading.format_values(values)}; expected 0 and one other value")
    return pair_as_nifti(SITE, name, image, mask, mask_folder)


def find_subfolder(folder: Path, name: str) -> Path | None:
    """Return the folder directly inside another one whose name, in lower case, is `name`; None without one."""
    return next((path for path in sorted(folder.iterdir()) if folded(path.name) == name and path.is_dir()), None)
