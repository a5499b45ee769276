"""Warn if images of one patient may count as different patients, and refuse patients that count as sites."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from medfed.core.errors import Problem
from medfed.datasets.case import Case
from medfed.datasets.part_names import are_years, is_part
from medfed.images.file_names import folded

if TYPE_CHECKING:
    from medfed.datasets.base import Dataset

_SIDES = "left|right|links|rechts|od|os|re|le|l|r"
PATTERNS = (
    r"(?i)(?:^|[^a-z])((?:patient|patnt|pat|pt|subject|subj|sub|person|case|p)[_-]?\d+)",  # sub-01_ses-1
    rf"(?i)^(.*?)(?:(?:[\W_]|(?<=\d))(?:{_SIDES})(?:[\W_].*)?)?$",  # 01L, 7_left, 7_L_x
    r"^(\D*\d+)[\W_].",  # 8863_x51
)
# Instead of "^" if the folders are parts of a split, because a patient may be in several parts.
PARTS = "^(?:.*/)?(?!.*/)"


def suggest_pattern(names: Sequence[str]) -> str | None:
    """Return a regular expression whose first group is the patient.

    The first of `PATTERNS` counts that fits all names and finds two or more patients with several images; the last
    must find two or more images of a patient on average. None if none does, or if the patients are years. Equal names
    in several parts of a split say nothing, because the numbers may begin again in each part.
    """
    folders = {folder for name in names for folder in name.split("/")[:-1]}
    in_parts = bool(folders) and all(map(is_part, folders))
    for number, usual in enumerate(PATTERNS):
        pattern = usual.replace("^", PARTS, 1) if in_parts and number else usual
        groups = _groups(names, pattern)
        several = [
            group
            for group in groups.values()
            if len({name.rpartition("/")[2] if in_parts else name for name in group}) > 1
        ]
        is_uncertain = usual == PATTERNS[-1] and 2 * len(groups) > len(names)
        if len(several) > 1 and not is_uncertain and not are_years(groups):
            return pattern
    return None


def patient_warnings(dataset: Dataset, cases: Mapping[str, Sequence[Case]]) -> list[Problem]:
    """`patient_warning` of each site; none if `data.patient_pattern` is set, or if the dataset has no such setting."""
    if getattr(dataset, "patient_pattern", "no such setting") is not None:
        return []
    classes = () if getattr(dataset, "table", None) else dataset.classes
    return [warning for site, of_site in cases.items() for warning in patient_warning(site, of_site, classes)]


def patient_warning(site: str, cases: Sequence[Case], classes: Sequence[str]) -> list[Problem]:
    """Warn if each image counts as a patient, but the names suggest that several show the same; say which pattern to
    set. `classes` are part of the names of cases, but not of the names in which the pattern is searched."""
    if any(case.patient != case.name or case.part for case in cases):
        return []
    names = [_without_class(case, classes) for case in cases]
    pattern = suggest_pattern(names)
    if pattern is None:
        return []
    found = (  # without a name of a file, because `medfed score` writes it into a summary that leaves the hospital
        f"the file names suggest {len(_groups(names, pattern))} patients for {len(names)} images, but every image "
        "counts as a patient: intervals are then too narrow, and a split can separate images of a patient, so that "
        "scores are too good"
    )
    cure = f"set data.patient_pattern: '{pattern}', or '(.+)' if each image is another patient"
    return [Problem("names of several images of a patient", site, found, cure)]


def _without_class(case: Case, classes: Sequence[str]) -> str:
    """Return the name in which `data.patient_pattern` is searched: that of the case without the class."""
    folders = case.name.split("/")
    if case.label is not None and classes:
        of_class = [index for index, folder in enumerate(folders) if folded(folder) == folded(classes[case.label])]
        folders = [folder for index, folder in enumerate(folders) if index not in of_class[:1]]
    return "/".join(folders)


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
    """Refuse two or more sites with DICOM images if each has one patient of its own.

    The names of patients would become names of sites, which leave a hospital; the message names no folder either.
    """
    patients = [{case.patient for case in of_site} for of_site in cases.values()]
    if len(patients) < 2 or any(len(one) > 1 for one in patients) or len(set().union(*patients)) < len(patients):
        return
    found = (
        f"each of its {len(patients)} sites with DICOM files holds the images of one patient, so they look like "
        "patients, whose names must not become names of sites; expected a folder for each site"
    )
    cure = (
        "put a folder for each hospital above the patients, or, if each folder is a hospital, list the folders in "
        "data.sites"
    )
    raise Problem("patients as sites", root, found, cure)
