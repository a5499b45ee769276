"""Find out whether the names of files say that several images belong to one patient."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

MIN_PAIRS_OF_SIDES = 2  # patients with a left and a right image in a site
_LABELLED = re.compile(
    r"(?:^|[^A-Za-z])((?:patient|patnt|pat|pt|subject|subj|sub|person|case|p)([_-]?)\d+)", re.IGNORECASE
)
# Patterns with the patient in the first group, and the words that may follow it.
_SIDES = ("[lL]eft|[rR]ight|LEFT|RIGHT", "OD|OS|od|os", "L|R", "l|r")


def suggest_pattern(names: Sequence[str]) -> tuple[str, list[str]] | None:
    """Find a regular expression that divides the names of a site's images into patients with several images.

    These patterns are tried, in this order:

    - a word such as patient, pat, sub, case or p with a number: `sub-01_ses-1`, `sub-01_ses-2`
    - a side at the end: `01L` and `01R`, `7_left` and `7_right`, at least twice in the site
    - a number with more after it: `8863_x51`, `8863_x101`, `9022_x51`. There must be two or more such patients, with
      two or more images on average, because a single number may be a year or a series.

    Args:
        names: names of the images, without suffix.

    Returns:
        The regular expression, whose first group is the patient, and the names of the images of one patient with
        several images. None if no pattern fits all names.
    """
    patterns = []
    if label := _LABELLED.search(names[0]) if names else None:
        word = label[1][: re.search(r"[_-]?\d", label[1]).start()]  # type: ignore[union-attr]
        patterns.append((rf"(?:^|[^A-Za-z])({word}{label[2]}\d+)", 1))
    patterns += [(rf"^(.*?)(?:[_\-. ]?(?:{sides}))?$", 0) for sides in _SIDES]  # other sites may name no side
    patterns.append((r"^(\D*\d+)[_\-. ].", 2))
    for pattern, min_patients in patterns:
        groups = _groups(names, pattern)
        several = [group for group in groups.values() if len(group) > 1]
        if not several:
            continue
        if len(several) >= MIN_PAIRS_OF_SIDES if min_patients == 0 else (
            len(groups) >= min_patients and (min_patients < 2 or len(names) >= 2 * len(groups))
        ):
            return pattern, several[0]
    return None


def patient_warning(site: str, names: Sequence[str]) -> list[str]:
    """Warn if the names of a site's images suggest that several of them show the same patient.

    Args:
        site: name of the site, in which every image counts as a patient.
        names: names of the images, in which `data.patient_pattern` would be searched. Images of two classes may have
            equal names.

    Returns:
        One sentence with the pattern to set, or an empty list.
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
            "data.patient_pattern: '(.+)', or name the patients in a table (data.datalist)"
        )
    return [
        f"{site}: the file names suggest {n_patients} patients for {len(names)} images, such as one patient for "
        f"{group[0]} and {group[1]}, but every image counts as a patient; a split can separate images of a patient, so "
        f"that scores are too good; set data.patient_pattern: '{pattern}'{each_alone}"
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
