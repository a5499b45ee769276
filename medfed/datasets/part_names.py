"""Recognise names of folders that are no sites or no patients: parts of a split, years, visits and scanners."""

from __future__ import annotations

import os
import re
from collections.abc import Collection

_SPLIT = r"(?:train(?:ing|val)?|val|valid|validation|dev|development|test|testing|hold[_\- ]?out|evaluation|eval)"
_HOLDER = r"(?:set|data|dataset|images?|imgs?|samples?|cases?|split)"
_NUMBERED = r"(?:(?:k|cv|cross)?[_\- ]?fold|cv|split|(?:sub|data)?set|chunk|batch|part|shard)"
# "train", "test_set", "1_training", "fold3", "training batch 1"
_PART = re.compile(
    rf"(?:\w{{1,2}}[_\-. ])?{_SPLIT}(?:[_\- ]?{_HOLDER})?(?:[_\- ]?(?:{_NUMBERED}[_\- ]?)?\d{{1,2}})?"
    rf"|{_NUMBERED}[_\-. ]?(?:\d{{1,2}}|[a-e])",
    re.IGNORECASE,
)
_DATE = re.compile(r"(?:19[89]\d|20[0-3]\d)([_\-.]?(?:0[1-9]|1[0-2])(?:[_\-.]?(?:0[1-9]|[12]\d|3[01]))?)?")
MAX_YEARS = 15
_NO_PATIENT = re.compile(  # "ses-01", "scanner2", "T2w", "3T", "b1000", "40X"
    r"(?:ses|session|visit|scanner|series|seq|sequence|phase|frame|tp|time ?point|year|month|week|day|cent(?:er|re)"
    r"|clinic|hospital|vendor|device|level|batch)[_\- ]?\d+|t[12]w?|b(?:0|\d+0)|(?:0[.,]\d+|1[.,]5|3|7)t|\d+x",
    re.IGNORECASE,
)


def is_part(name: str) -> bool:
    """Return whether a folder is called as a part of a split or dataset, such as "train", "Test_set" or "fold3"."""
    return _PART.fullmatch(name) is not None


def is_no_patient(name: str) -> bool:
    """Return whether a folder with a number is called as a part, visit, sequence, scanner or magnification."""
    return is_part(name) or _NO_PATIENT.fullmatch(name) is not None


def are_years(names: Collection[str]) -> bool:
    """Return whether names are years, months or days of examinations, and so no patients: "2019", "scan_20200131".

    More than 15 years may be numbers of patients.
    """
    start = os.path.commonprefix([re.split(r"\d", name, maxsplit=1)[0] for name in names])
    dates = [_DATE.fullmatch(name[len(start) :]) for name in names]
    return len(names) > 1 and all(dates) and (len(names) <= MAX_YEARS or all(date and date[1] for date in dates))
