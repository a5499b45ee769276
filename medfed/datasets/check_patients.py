"""Warn if images of one patient may count as different patients, and refuse patients that count as sites."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from medfed.core.errors import Problem
from medfed.datasets.case import Case
from medfed.datasets.part_names import are_years, is_no_patient, is_part
from medfed.images.file_names import folded

if TYPE_CHECKING:
    from medfed.datasets.base import Dataset

_SIDES = "left|right|links|rechts|od|os|re|le|l|r"
_PERSON = r"(?<![a-z])(?:patient|patnt|pat|subject|subj|person)[_-]?\d+"
PATTERNS = (
    r"(?i)(?:^|[^a-z])((?:patient|patnt|pat|pt|subject|subj|sub|person|case|p)[_-]?\d+)",  # sub-01_ses-1
    rf"(?i)({_PERSON}|^(?!.*{_PERSON}).+)",  # person4_1 beside IM-0115
    rf"(?i)^(.*?)(?:(?:[\W_]|(?<=\d))(?:{_SIDES})(?:[\W_].*)?)?$",  # 01L, 7_left, 7_L_x
    r"^(\D*\d+)[\W_].",  # 8863_x51
)
# Instead of "^" if the folders are parts of a split, because a patient may be in several parts.
PARTS = "^(?:.*/)?(?!.*/)"


def suggest_pattern(names: Sequence[str]) -> str | None:
    """Return a regular expression whose first group is the patient.

    The first of `PATTERNS` counts that fits all names and finds two or more patients with several images; for the last,
    these must be a tenth of the images or more. None if none does, or if the patients are years. Equal names
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
        is_uncertain = usual == PATTERNS[-1] and 10 * len(groups) > 9 * len(names)
        if len(several) > 1 and not is_uncertain and not are_years(groups):
            return pattern
    return None


def patient_warnings(dataset: Dataset, cases: Mapping[str, Sequence[Case]]) -> list[Problem]:
    """Warn of each site where every image counts as a patient, but names suggest that several show the same one.

    None if `data.patient_pattern` is set, also for the site alone, or if the dataset has no such setting.
    """
    if getattr(dataset, "patient_pattern", "no such setting") is not None:
        return []
    table, by_site = getattr(dataset, "table", None), getattr(dataset, "by_site", {})
    classes = () if table else dataset.classes
    names = {site: [_without_class(case, classes) for case in of_site] for site, of_site in cases.items()}
    suggested = {site: suggest_pattern(of_site) for site, of_site in names.items()}
    every_name = [name for of_site in names.values() for name in of_site]
    known = {site for site in cases if any(case.patient != case.name or case.part for case in cases[site])}
    warnings = []
    for site, of_site in cases.items():
        if site in known or "patient_pattern" in by_site.get(site, {}):
            continue
        n_images, pattern = len(of_site), suggested[site]
        key, end = "data.patient_pattern: ", ""
        if known or {*suggested.values()} - {pattern, None} or not (pattern is None or _groups(every_name, pattern)):
            key, end = f"data.by_site: {{{_as_key(site)}: {{patient_pattern: ", "}}"
        if pattern:
            evidence = f"the file names suggest {len(_groups(names[site], pattern))} patients for {n_images} images"
            cure = f"set {key}'{pattern}'{end}"
        elif table and (n_folders := _n_numbered_folders(Path(dataset.root), of_site)):
            evidence = f"{n_folders} folders with numbers, perhaps of patients, hold several of the {n_images} images"
            cure = "add the column patient to the table"
        else:
            continue
        found = (  # without a name of a file, because `medfed score` writes it into a summary that leaves the hospital
            f"{evidence}, but every image counts as a patient: intervals are then too narrow, and a split can separate "
            "images of a patient, so that scores are too good"
        )
        cure += f", or {key}'(.+)'{end} if each image is another patient"
        warnings.append(Problem("names of several images of a patient", site, found, cure))
    return warnings


def _as_key(site: str) -> str:
    """Return the name of a site as a key of a YAML mapping on one line."""
    return site if re.fullmatch(r"[\w.-]+", site) else json.dumps(site, ensure_ascii=False)


def _n_numbered_folders(root: Path, cases: Sequence[Case]) -> int:
    """Return how many folders with a number in their name hold several of the images, as patients do; 0 for one.

    A folder that holds all images of its classes, or of the site, is none, nor are parts, years, visits and scanners.
    """
    n_of_class = Counter(case.label for case in cases)
    inside: dict[Path, Counter[int | None]] = defaultdict(Counter)
    for (folder, label), n_images in Counter((case.image.parent, case.label) for case in cases).items():
        for above in (folder, *folder.parents):
            if root in above.parents and re.search("[0-9]", above.name) and not is_no_patient(above.name):
                inside[above][label] += n_images
    several = [
        folder.name
        for folder, own in inside.items()
        if own.total() > 1 and any(n_images < n_of_class[label] for label, n_images in own.items())
    ]
    return 0 if len(several) < 2 or are_years(several) else len(several)


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
