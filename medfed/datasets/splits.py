"""Split the cases of a site by patient into training, validation and test parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from medfed.core.seeds import digest
from medfed.datasets.case import Case

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """Training, validation and test cases of one site, each sorted by `Case.name`; no patient is in two parts."""

    train: list[Case]
    validation: list[Case]
    test: list[Case]

    def all(self) -> list[Case]:
        """Return the cases of all three parts: training, validation, then test."""
        return [*self.train, *self.validation, *self.test]


def split(cases: Iterable[Case], seed: int, validation_ratio: float, test_ratio: float) -> Split:
    """Split one site's cases into training, validation and test parts. All cases of a patient are in the same part.

    The patients are ordered by the SHA-256 of (seed, site, patient): the first ones are used for validation, the next
    ones for test, the others for training. If a patient is added, few other patients move to another part.

    The numbers of validation and test patients are the ratios (each in [0, 1), sum below 1) times the number of
    patients, rounded, and at least 1 if the ratio is above 0 and there are two patients (validation) or three (test).
    One patient is always left for training: the larger of the other two parts gives it, or the test part if they are
    equally large.

    A published split (`Case.part`) replaces all this, except that a fraction `validation_ratio` of its training
    patients is used for validation if it has no validation part.
    """
    cases = sorted(cases, key=lambda case: case.name)
    if any(case.part for case in cases):
        train, validation, test = ([case for case in cases if case.part == part] for part in PARTS)
        if not validation and validation_ratio > 0:
            divided = split([replace(case, part="") for case in train], seed, validation_ratio, 0.0)
            train, validation = divided.train, divided.validation
        return Split(train, validation, test)
    ranked = sorted({(case.site, case.patient) for case in cases}, key=lambda patient: digest(seed, *patient))
    n_validation, n_test = _counts(len(ranked), validation_ratio, test_ratio)
    parts = ranked[n_validation + n_test :], ranked[:n_validation], ranked[n_validation : n_validation + n_test]
    return Split(*([case for case in cases if (case.site, case.patient) in part] for part in map(set, parts)))


def sample_cases(cases: Iterable[Case], seed: int, ratio: float) -> list[Case]:
    """Sample a share of one site's cases by the hash of their names; those for a smaller ratio are among them."""
    ranked = sorted(cases, key=lambda case: digest(seed, case.site, f"case {case.name}"))
    return sorted(ranked[: max(1, int(len(ranked) * ratio + 0.5))], key=lambda case: case.name)


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
