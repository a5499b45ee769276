"""Split the cases of a site by patient into training, validation and test parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from medfed.core.seeds import digest
from medfed.datasets.case import Case

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """Training, validation and test cases of one site; no patient is in two parts.

    Args:
        train: training cases, sorted by `Case.name`.
        validation: validation cases, sorted by `Case.name`.
        test: test cases, sorted by `Case.name`.
    """

    train: list[Case]
    validation: list[Case]
    test: list[Case]

    def all(self) -> list[Case]:
        """Return the cases of all three parts: training, validation, then test."""
        return [*self.train, *self.validation, *self.test]


def split(cases: Iterable[Case], seed: int, validation_ratio: float, test_ratio: float) -> Split:
    """Split one site's cases into training, validation and test parts. All cases of a patient are in the same part.

    The patients (`Case.patient`) are ordered by the SHA-256 of (seed, site, patient). In this order, the first patients
    are used for validation, the next patients for test, and the remaining patients for training. The order of `cases`
    has no influence. If a patient is added, few other patients move to another part.

    The numbers of validation and test patients are the ratios times the number of patients, rounded. If
    `validation_ratio` is above 0 and there are two or more patients, at least one patient is used for validation. If
    `test_ratio` is above 0 and there are three or more patients, at least one patient is used for test. At least one
    patient is always used for training. While there is none, the larger of the other two parts gives one patient to
    the training part. If the two parts are equally large, the test part does.

    If the dataset comes with a published split, the field `part` of each case names its part, and the ratios are not
    used. There is one exception: if the published split has no validation part, the fraction `validation_ratio` of its
    training patients is used for validation, selected as above.

    Args:
        cases: cases of one site, in any order.
        seed: seed of the run; another seed gives another split.
        validation_ratio: fraction of the patients for validation, in [0, 1).
        test_ratio: fraction of the patients for test, in [0, 1).

    Returns:
        The cases of the three parts. Each part is sorted by `Case.name`, which is the name of the case (the patient
        is `Case.patient`).

    Raises:
        ValueError: if a ratio is negative or their sum is not below 1.
    """
    if not (validation_ratio >= 0 and test_ratio >= 0 and validation_ratio + test_ratio < 1):
        raise ValueError(
            "validation_ratio and test_ratio must be at least 0 and sum to less than 1, "
            f"got {validation_ratio} and {test_ratio}"
        )
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
    """Sample a fraction of the cases of one site at random. Cases of a patient are sampled independently of each other.

    The cases are ordered by the SHA-256 of (seed, site, case), and the first ones are taken. The order of `cases` has
    no influence, and the cases for a smaller ratio are among those for a larger one.

    Args:
        cases: cases of one site, in any order.
        seed: seed of the run; another seed samples other cases.
        ratio: fraction of the cases, in (0, 1]. Their number is rounded, and is at least 1 if there is a case.

    Returns:
        The sampled cases, sorted by `Case.name`, which is the name of the case.
    """
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
