"""Find out whether the names of files say that several images belong to one patient."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from medfed.core.errors import Problem
from medfed.datasets.case import Case
from medfed.datasets.part_names import are_years

MIN_PAIRS_OF_SIDES = 2  # patients with a left and a right image in a site
_LABELLED = re.compile(
    r"(?:^|[^A-Za-z])((?:patient|patnt|pat|pt|subject|subj|sub|person|case|p)([_-]?)\d+)", re.IGNORECASE
)
_COPY = r"^(.*?)(?:[_\-. ](?:aug|hflip|vflip|flip|rot|mirror|crop|copy)[^/]*)?$"
_SIDES = ("[lL]eft|[rR]ight|LEFT|RIGHT", "OD|OS|od|os", "L|R", "l|r", "RE|LE", "[lL]inks|[rR]echts")  # may follow it


def suggest_pattern(names: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return a regular expression whose first group is the patient, and the names of one patient with several images.

    None if no pattern fits all names. These patterns are tried, in this order:

    - a word such as patient, pat, sub, case or p with a number: `sub-01_ses-1`, `sub-01_ses-2`
    - a side at the end: `01L` and `01R`, `7_left` and `7_right`, at least twice in the site
    - a word for a changed copy at the end, at least twice: `7` and `7_aug1`, `8` and `8_flip`
    - a side at the start or within the name, with both sides at least twice: `OD_7` and `OS_7`, `7_L_x` and `7_R_x`
    - a number with more after it: `8863_x51`, `8863_x101`, `9022_x51`. There must be two or more such patients, with
      two or more images on average, because a single number may be a series, and they must not be years.
    """
    patterns = []
    if label := _LABELLED.search(names[0]) if names else None:
        word = label[1][: re.search(r"[_-]?\d", label[1]).start()]  # type: ignore[union-attr]
        patterns.append((rf"(?:^|[^A-Za-z])({word}{label[2]}\d+)", 1))
    patterns += [(rf"^(.*?)(?:[_\-. ]?(?:{sides}))?$", 0) for sides in _SIDES]  # other sites may name no side
    patterns.append((_COPY, 0))
    patterns += [(pattern, 0) for sides in _SIDES for pattern in _inner_patterns(names, sides)]
    patterns.append((r"^(\D*\d+)[_\-. ].", 2))
    for pattern, min_patients in patterns:
        groups = _groups(names, pattern)
        several = [group for group in groups.values() if len(group) > 1]
        if not several or are_years(groups):
            continue
        if (
            len(several) >= MIN_PAIRS_OF_SIDES
            if min_patients == 0
            else (len(groups) >= min_patients and (min_patients < 2 or len(names) >= 2 * len(groups)))
        ):
            return pattern, several[0]
    return None


def year_problems(folder: Path, cases: Sequence[Case]) -> list[Problem]:
    """Return the problem that the patients of a site look like years, or an empty list."""
    patients = sorted({case.patient for case in cases})
    if len(patients) == len(cases) or not are_years(patients):
        return []
    return [
        Problem(
            "years as patients",
            folder,
            f"its {len(patients)} patients, such as {patients[0]} and {patients[1]}, look like years or dates; "
            "expected the identifiers of patients",
            "set data.patient_pattern to the part of a name that is the patient, or '(.+)' if each image is another "
            "patient, or name the patients in a table (data.table)",
        )
    ]


def patient_warning(site: str, names: Sequence[str]) -> list[Problem]:
    """Warn if the names of a site's images suggest that several show the same patient; say which pattern to set.

    Images of two classes may have equal names.
    """
    suggestion = suggest_pattern(names)
    if suggestion is None:
        return []
    pattern, group = suggestion
    n_patients = len(_groups(names, pattern))
    each_alone = ", or '(.+)' if each image is another patient"
    if len(set(names)) < len(names):  # '(.+)' would take images of two classes with equal names as one patient
        each_alone = (
            "; if each image is another patient, give the files of different classes different names first, and set "
            "data.patient_pattern: '(.+)', or name the patients in a table (data.table)"
        )
    return [
        Problem(
            "names of several images of a patient",
            site,
            f"the file names suggest {n_patients} patients for {len(names)} images, such as one patient for "
            f"{group[0]} and {group[1]}, but every image counts as a patient; a split can separate images of a "
            "patient, so that scores are too good",
            f"set data.patient_pattern: '{pattern}'{each_alone}",
        )
    ]


def _inner_patterns(names: Sequence[str], sides: str) -> list[str]:
    """Return the patterns of a side at the start or within names that find both sides of several patients."""
    word = re.compile(rf"(?<![^\W_])(?:{sides})(?![^\W_])")
    patterns = (rf"^(?:(?:{sides})[_\-. ])?(.+)$", rf"^(.*?)(?:[_\-. ](?:{sides})(?:[_\-. ].*)?)?$")
    return [
        pattern
        for pattern in patterns
        if sum(
            len({side for name in group for side in word.findall(name)}) > 1
            for group in _groups(names, pattern).values()
        )
        >= MIN_PAIRS_OF_SIDES
    ]


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
