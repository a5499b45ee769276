"""Find out by the headers of DICOM files whether patients were taken for sites, or a site for one patient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from medfed.core.errors import Problem, UserError
from medfed.datasets.case import Case
from medfed.images.dicom import Header, header
from medfed.images.dicom_files import all_files, kind_of


def refuse_patients_as_sites(root: Path, cases: Mapping[str, Sequence[Case]]) -> None:
    """Refuse patients as sites: their names would be the names of sites, which leave a hospital.

    Every site with DICOM images must look like a patient, and there must be at least two. A site looks like a patient
    if its images have one PatientID, which no other site has; or, if PatientID is empty or the same at several sites,
    if its images belong to one study. The message names no folder, as the names may be those of patients.
    """
    identifiers, n_studies = [], []
    for of_site in cases.values():
        patients, studies = set(), set()
        for entry in (entry for case in of_site for entry in _headers(case.image)):
            patients.add(entry.patient)
            studies.add(entry.study)
            if len(patients) > 1:
                return
        if patients:
            identifiers.append(patients.pop())
            n_studies.append(len(studies))
    tell_patients_apart = all(identifiers) and len(set(identifiers)) == len(identifiers)
    if len(identifiers) < 2 or not (tell_patients_apart or set(n_studies) == {1}):
        return
    found = (
        f"each of its {len(identifiers)} sites with DICOM files holds the images of one patient, so they look like "
        "patients, whose names must not become names of sites; expected a folder for each site"
    )
    cure = (
        "put a folder for each hospital above the patients, or, if each folder is a hospital, list the folders in "
        "data.sites"
    )
    raise Problem("patients as sites", root, found, cure)


def shared_patient_warnings(site: str, cases: Iterable[Case]) -> list[Problem]:
    """Warn if all DICOM images of a site count as one patient: PatientID may be the same for all patients."""
    images = {case.image: case.patient for case in cases if case.image.is_dir()}
    if len(images) < 2 or len(set(images.values())) > 1:
        return []
    return [
        Problem(
            "one DICOM patient for all images",
            site,
            f"all {len(images)} DICOM images count as one patient, so that no split by patient is possible",
            "if PatientID is the same for all patients, set data.patient_pattern to find the patient in the names of "
            "the folders, such as '^([^/]+)' for the first folder in the site, or '([^/]+)$' for the last",
        )
    ]


def _headers(folder: Path) -> Iterator[Header]:
    """Yield the headers of the first and the last DICOM image of every folder; damaged files are left out."""
    for _, group in groupby(all_files(folder), key=lambda path: path.parent):
        files = list(group)
        for ordered in (files, files[::-1]):
            image = next((path for path in ordered if kind_of(path) == "image"), None)
            if image is None:
                break
            with suppress(UserError):  # reading the images reports a damaged file
                yield header(image)
