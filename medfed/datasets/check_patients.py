"""Find out by names and DICOM headers whether what counts as a patient, or as a site, is something else."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from medfed.core.errors import Problem, UserError
from medfed.datasets.case import Case
from medfed.datasets.part_names import are_years
from medfed.images.dicom import header, text
from medfed.images.dicom_files import files_of_kind

if TYPE_CHECKING:
    from pydicom import Dataset

_SIDES = "left|right|links|rechts|od|os|re|le|l|r"
_SIDE = re.compile(rf"(?<![a-z])(?:{_SIDES})(?![a-z])", re.IGNORECASE)
_LABEL = r"(?i)(?:^|[^a-z])((?:patient|patnt|pat|pt|subject|subj|sub|person|case|p)[_-]?\d+)"  # sub-01_ses-1
_SIDE_AFTER = rf"(?i)^(.*?)(?:(?:[\W_]|(?<=\d))(?:{_SIDES})(?:[\W_].*)?)?$"  # 01L, 7_left, 7_L_x
_SIDE_BEFORE = rf"(?i)^(?:(?:{_SIDES})[\W_])?(.+)$"  # OD_7
_COPY = r"(?i)^(.*?)(?:[\W_](?:aug|hflip|vflip|flip|rot|mirror|crop|copy)[^/]*)?$"  # 7_aug1
_NUMBER = r"^(\D*\d+)[\W_]."  # 8863_x51


def suggest_pattern(names: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return a regular expression whose first group is the patient, and the names of one patient with several images.

    The first of these that fits all names counts; None if none does: a word such as patient or sub with a number; both
    sides of at least two patients; changed copies of at least two images; a number with more after it, which must not
    be a year, with two or more images of a patient on average.
    """
    for pattern in (_LABEL, _SIDE_AFTER, _SIDE_BEFORE, _COPY, _NUMBER):
        groups = _groups(names, pattern)
        several = [group for group in groups.values() if len(group) > 1]
        if pattern in (_SIDE_AFTER, _SIDE_BEFORE):
            several = [group for group in several if len({_sides(name, pattern) for name in group}) > 1]
        is_enough = len(several) >= (1 if pattern == _LABEL else 2)
        if pattern == _NUMBER:
            is_enough = 2 <= len(groups) <= len(names) / 2
        if is_enough and not are_years(groups):
            return pattern, several[0]
    return None


def year_problems(folder: Path, cases: Sequence[Case]) -> list[Problem]:
    """Return the problem that the patients of a site look like years, or an empty list."""
    patients = sorted({case.patient for case in cases})
    if len(patients) == len(cases) or not are_years(patients):
        return []
    found = (
        f"its {len(patients)} patients, such as {patients[0]} and {patients[1]}, look like years or dates; "
        "expected the identifiers of patients"
    )
    cure = (
        "set data.patient_pattern to the part of a name that is the patient, or '(.+)' if each image is another "
        "patient, or name the patients in a table (data.table)"
    )
    return [Problem("years as patients", folder, found, cure)]


def patient_warning(site: str, cases: Sequence[Case]) -> list[Problem]:
    """Warn if each image counts as a patient, but the names suggest that several show the same; say which pattern to
    set."""
    if any(case.patient != case.name or case.part for case in cases):
        return []
    names = [case.name if case.masks else case.name.rpartition("/")[2] for case in cases]  # without the class
    suggestion = suggest_pattern(names)
    if suggestion is None:
        return []
    pattern, group = suggestion
    found = (
        f"the file names suggest {len(_groups(names, pattern))} patients for {len(names)} images, such as one patient "
        f"for {group[0]} and {group[1]}, but every image counts as a patient; a split can separate images of a "
        "patient, so that scores are too good"
    )
    # '(.+)' would take images of two classes with equal names as one patient
    each_alone = ", or '(.+)' if each image is another patient" if len(set(names)) == len(names) else ""
    cure = f"set data.patient_pattern: '{pattern}'{each_alone}"
    return [Problem("names of several images of a patient", site, found, cure)]


def _sides(name: str, pattern: str) -> str:
    """Return the words for a side that a name has outside the patient that the pattern finds in it."""
    match = re.search(pattern, name)
    assert match is not None, "the pattern fits all names"
    return " ".join(_SIDE.findall(f"{name[: match.start(1)]} {name[match.end(1) :]}")).casefold()


def _groups(names: Sequence[str], pattern: str) -> dict[str, list[str]]:
    """Return the names by patient; empty if the pattern does not fit one of the names."""
    groups: dict[str, list[str]] = defaultdict(list)
    search = re.compile(pattern).search
    for name in names:
        match = search(name)
        if not (match and match[1]):
            return {}
        groups[match[1]].append(name)
    return groups


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
            patients.add(text(entry, "PatientID"))
            studies.add(text(entry, "StudyInstanceUID"))
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


def _headers(folder: Path) -> Iterator[Dataset]:
    """Yield the headers of the first and the last DICOM image of every folder; damaged files are left out."""
    for _, group in groupby(files_of_kind(folder, "image"), key=lambda path: path.parent):
        first, *others = group
        for path in (first, *others[-1:]):
            with suppress(UserError):  # reading the images reports a damaged file
                yield header(path)
