"""Split the cases of a site by patient into training, validation and test parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from medfed.datasets.case import Case

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """Training, validation and test cases of one site; no patient is in two parts.

    Args:
        train: training cases, sorted by `Case.patient`.
        validation: validation cases, sorted by `Case.patient`.
        test: test cases, sorted by `Case.patient`.
    """

    train: list[Case]
    validation: list[Case]
    test: list[Case]

    def all(self) -> list[Case]:
        """Return the cases of all three parts: training, validation, then test."""
        return [*self.train, *self.validation, *self.test]


def split(cases: Iterable[Case], seed: int, validation_ratio: float, test_ratio: float) -> Split:
    """Split one site's cases into training, validation and test parts. All cases of a patient are in the same part.

    The patients (`Case.subject`) are ordered by the SHA-256 of (seed, site, patient). The first ones are used for
    validation, the next ones for test, and the others for training. So the order of the cases and the other sites have
    no influence, and adding a patient moves few others to another part.

    The numbers of validation and test patients are the ratios times the number of patients, rounded. If its ratio is
    above 0, validation has at least one patient (of two or more), and test has at least one (of three or more).
    Training always has at least one patient: if necessary, the larger of the other two parts becomes smaller (test, if
    they are equal).

    If the dataset comes with a published split, the field `part` of the cases says the part, and these parts are used.
    If the published split has no validation part, some training patients are used for validation, selected as above.

    Args:
        cases: cases of one site.
        seed: seed of the run; another seed gives another split.
        validation_ratio: fraction of the patients for validation, in [0, 1).
        test_ratio: fraction of the patients for test, in [0, 1).

    Returns:
        The cases of the three parts, each sorted by `Case.patient`, the name of the case.

    Raises:
        ValueError: if a ratio is negative or their sum is not below 1.
    """
    if not (validation_ratio >= 0 and test_ratio >= 0 and validation_ratio + test_ratio < 1):
        raise ValueError(
            "validation_ratio and test_ratio must be at least 0 and sum to less than 1, "
            f"got {validation_ratio} and {test_ratio}"
        )
    cases = sorted(cases, key=lambda case: case.patient)
    if any(case.part for case in cases):
        train, validation, test = ([case for case in cases if case.part == part] for part in PARTS)
        if not validation and validation_ratio > 0:
            divided = split([replace(case, part="") for case in train], seed, validation_ratio, 0.0)
            train, validation = divided.train, divided.validation
        return Split(train, validation, test)
    ranked = sorted({(case.site, case.subject) for case in cases}, key=lambda patient: _rank(seed, *patient))
    n_validation, n_test = _counts(len(ranked), validation_ratio, test_ratio)
    parts = ranked[n_validation + n_test :], ranked[:n_validation], ranked[n_validation : n_validation + n_test]
    return Split(*([case for case in cases if (case.site, case.subject) in part] for part in map(set, parts)))


def _rank(seed: int, site: str, subject: str) -> bytes:
    return hashlib.sha256("\x1f".join((str(seed), site, subject)).encode()).digest()


def _counts(n: int, validation_ratio: float, test_ratio: float) -> tuple[int, int]:
    """Return the numbers of validation and test patients, out of n patients."""
    n_validation = max(int(n * validation_ratio + 0.5), 1 if validation_ratio > 0 and n > 1 else 0)
    n_test = max(int(n * test_ratio + 0.5), 1 if test_ratio > 0 and n > 2 else 0)
    while n_validation + n_test > max(n - 1, 0):
        if n_validation > n_test:
            n_validation -= 1
        else:
            n_test -= 1
    return n_validation, n_test
