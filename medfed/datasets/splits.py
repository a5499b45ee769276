"""Splitting a site's cases by patient, before anything else happens to them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from medfed.datasets.case import Case

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """The cases of one site, each list sorted by patient; no person is in two of them."""

    train: list[Case]
    validation: list[Case]
    test: list[Case]

    def all(self) -> list[Case]:
        return [*self.train, *self.validation, *self.test]


def split(cases: Iterable[Case], seed: int, validation_ratio: float, test_ratio: float) -> Split:
    """Divide one site's cases by `subject`.

    Subjects are ranked by the SHA-256 of (seed, site, subject); the first go to validation, the next to test, the rest
    to training. So neither the order of the cases nor another site moves anybody, and one patient more moves few.

    Numbers of subjects are the ratios rounded to the nearest, then: training has at least one; validation has at least
    one of two or more subjects, and test of three or more, where its ratio is above 0. Where training would be left
    empty, the larger of validation and test gives up subjects (test, where they are equal).

    Where the cases carry the part that a publication gave them (`Case.part`), that decides instead; if it has no
    validation part, that is taken out of the training part as above.

    Raises:
        ValueError: if a ratio is negative or their sum is not below 1.
    """
    if not (validation_ratio >= 0 and test_ratio >= 0 and validation_ratio + test_ratio < 1):
        raise ValueError(f"ratios must be at least 0 and sum to less than 1, got {validation_ratio} and {test_ratio}")
    cases = sorted(cases, key=lambda case: case.patient)
    if any(case.part for case in cases):
        train, validation, test = ([case for case in cases if case.part == part] for part in PARTS)
        if not validation and validation_ratio > 0:
            divided = split([replace(case, part="") for case in train], seed, validation_ratio, 0.0)
            train, validation = divided.train, divided.validation
        return Split(train, validation, test)
    ranked = sorted({(case.site, case.subject) for case in cases}, key=lambda person: _rank(seed, *person))
    n_validation, n_test = _counts(len(ranked), validation_ratio, test_ratio)
    parts = ranked[n_validation + n_test :], ranked[:n_validation], ranked[n_validation : n_validation + n_test]
    return Split(*([case for case in cases if (case.site, case.subject) in part] for part in map(set, parts)))


def _rank(seed: int, site: str, subject: str) -> bytes:
    return hashlib.sha256("\x1f".join((str(seed), site, subject)).encode()).digest()


def _counts(n: int, validation_ratio: float, test_ratio: float) -> tuple[int, int]:
    """Subjects for validation and for test, out of n."""
    n_validation = max(int(n * validation_ratio + 0.5), 1 if validation_ratio > 0 and n > 1 else 0)
    n_test = max(int(n * test_ratio + 0.5), 1 if test_ratio > 0 and n > 2 else 0)
    while n_validation + n_test > max(n - 1, 0):
        if n_validation > n_test:
            n_validation -= 1
        else:
            n_test -= 1
    return n_validation, n_test
