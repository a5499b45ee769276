"""PROMISE12 (Litjens et al., 2014): T2-weighted prostate MRI of four hospitals, of which three are used here.

Layout, by the README of https://github.com/NVIDIA/NVFlare (examples/advanced/prostate): 50 training cases, each with
CaseNN.mhd, CaseNN.raw, CaseNN_segmentation.mhd and CaseNN_segmentation.raw. The three zip files need 7z; `unzip` fails.

The files do not name the hospital. The numbers below are those of https://github.com/neerakara/BWCR
(data_prostate_promise.py). They give UCL 13, BIDMC 12 and HK 12 cases, as many as the collection of MS-Net and SAML
has. The same source marks the 13 cases of RUNMC as overlapping with the NCI-ISBI challenge; they are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from medfed.core.errors import UserError
from medfed.images import reading
from medfed.preparation.entry import Download, Entry, files_in, walk
from medfed.preparation.volumes import pair_as_nifti

TITLE = "PROMISE12"
LAYOUT = "CaseNN.mhd with CaseNN_segmentation.mhd and their .raw files"
CASES = {
    "UCL": (1, *range(26, 38)),
    "BIDMC": (0, *range(2, 13)),
    "HK": tuple(range(38, 50)),
    "RUNMC": tuple(range(13, 26)),
}
NOTES = (
    "the hospitals of PROMISE12 follow from the case numbers, as data_prostate_promise.py of "
    "https://github.com/neerakara/BWCR lists them; the files do not name them",
    "volumes keep their size and all slices; the collection of MS-Net and SAML was resized to 384 x 384 pixels, so "
    "that scores may differ",
)
_FILE = re.compile(r"case(\d\d)\.mhd", re.IGNORECASE)


def find(source: Path) -> Download | None:
    """The cases in all folders of a source; None if there is no pair of image and mask."""
    entries: list[Entry] = []
    for folder in walk(source):
        paths = {path.name.lower(): path for path in files_in(folder)}
        for name, image in paths.items():
            if match := _FILE.fullmatch(name):
                entries.append(_entry(int(match[1]), image, paths.get(f"case{match[1]}_segmentation.mhd")))
    return Download(TITLE, tuple(entries), NOTES) if any(entry.files for entry in entries) else None


def _entry(number: int, image: Path, mask: Path | None) -> Entry:
    """One case of the download with its site; cases without a mask or of RUNMC are left out."""
    site = next((site for site, numbers in CASES.items() if number in numbers), "unknown")
    if mask is None:
        return Entry(site, image.name, None, "no mask; the masks of the challenge's test cases are not published")
    if site == "RUNMC":
        return Entry(site, image.name, None, "overlaps with the NCI-ISBI challenge, from which RUNMC is taken")
    if site == "unknown":
        return Entry(site, image.name, None, "the training cases have the numbers 00 to 49")
    return Entry(site, image.name, partial(_files, site, f"Case{number:02d}", image, mask))


def _files(site: str, name: str, image: Path, mask: Path) -> Mapping[str, bytes]:
    """The content of the case's NIfTI files, by path; UserError for unexpected labels."""
    labels = reading.read_labels(mask, [])
    if reading.label_values(labels) not in ([0, 1], [0]):
        values = reading.format_values(reading.label_values(labels))
        raise UserError(f"the mask has the labels {values}; expected 0 and 1")
    return pair_as_nifti(site, name, reading.read_volume(image), labels, mask)
