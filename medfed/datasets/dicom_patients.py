"""Find out by the headers of DICOM files whether patients were taken for sites, or a site for one patient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice
from pathlib import Path

from medfed.core.errors import Problem, UserError
from medfed.datasets.case import Case
from medfed.images.dicom import Header, header
from medfed.images.dicom_files import all_files, kind_of

MIN_IMAGES = 4  # of one patient at a site that has no other patient; from here on, they are probably several patients


def refuse_patients_as_sites(root: Path, cases: Mapping[str, Sequence[Case]]) -> None:
    """Refuse patients as sites: their names would be the names of sites, which leave a hospital.

    Every site with DICOM images must look like a patient, and there must be at least two. A site looks like a patient
    if its images have one PatientID, which no other site has; or, if PatientID is empty or the same at several sites,
    if its images belong to one study. The message names no folder, as the names may be those of patients.
    """
    identifiers, n_studies = [], []
    for of_site in cases.values():
        patients, studies = set(), set()
        for entry in (entry for case in of_site for entry in _headers(case.image, ())):
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


def shared_patient_warnings(site: str, cases: Iterable[Case], ignored_names: Sequence[str] = ()) -> list[Problem]:
    """Warn if all DICOM images of a site count as one patient, although they are probably those of several.

    They probably are if they belong to several studies, if they differ in the patient's birth date or sex, or if there
    are four or more.
    """
    images = {case.image: case.patient for case in cases if case.image.is_dir()}
    if len(images) < 2 or len(set(images.values())) > 1:
        return []
    headers = [entry for image in images for entry in islice(_headers(image, ignored_names), 1)]
    n_studies = len({entry.study for entry in headers})
    if len({(entry.birth_date, entry.sex) for entry in headers}) > 1:
        reason = "although birth date or sex in their files differ"
    elif n_studies > 1:
        reason = f"although they belong to {n_studies} studies"
    elif len(images) >= MIN_IMAGES:
        reason = "which is unusual"
    else:
        return []
    return [
        Problem(
            "one DICOM patient for all images",
            site,
            f"all {len(images)} DICOM images count as one patient, {reason}, so that no split by patient is possible; "
            "PatientID may be the same for all patients",
            "set data.patient_pattern to find the patient in the names of the folders, such as '^([^/]+)' for the "
            "first folder in the site, or '([^/]+)$' for the last",
        )
    ]


def _headers(folder: Path, ignored_names: Sequence[str]) -> Iterator[Header]:
    """Yield the headers of the first and the last DICOM image of every folder; damaged files are left out."""
    for _, group in groupby(all_files(folder, ignored_names), key=lambda path: path.parent):
        files = list(group)
        for ordered in (files, files[::-1]):
            image = next((path for path in ordered if kind_of(path) == "image"), None)
            if image is None:
                break
            with suppress(UserError):  # reading the images reports a damaged file
                yield header(image)
