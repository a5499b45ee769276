import random
from pathlib import Path

from medfed.datasets.case import Case
from medfed.datasets.splits import split


def cases(n: int, site: str = "north", visits: int = 1) -> list[Case]:
    return [
        Case(site, f"p{patient:02d}_{visit}", Path("i"), (), f"p{patient:02d}")
        for patient in range(n)
        for visit in range(visits)
    ]


def sizes(n: int, validation_ratio: float, test_ratio: float) -> tuple[int, int, int]:
    parts = split(cases(n), 0, validation_ratio, test_ratio)
    return len(parts.train), len(parts.validation), len(parts.test)


def test_every_case_is_in_one_part_and_all_visits_of_a_patient_in_the_same():
    parts = split(cases(30), 7, 0.1, 0.2)
    names = [case.name for part in (parts.train, parts.validation, parts.test) for case in part]
    assert sorted(names) == [case.name for case in cases(30)]
    assert sizes(30, 0.1, 0.2) == (21, 3, 6)
    parts = split(cases(12, visits=3), 7, 0.2, 0.2)
    patients = [{case.patient for case in part} for part in (parts.train, parts.validation, parts.test)]
    assert [len(part) for part in patients] == [8, 2, 2]
    assert not patients[0] & patients[1] and not patients[0] & patients[2] and not patients[1] & patients[2]
    assert len(parts.test) == 6


def test_the_seed_and_the_site_decide_and_the_order_of_the_cases_does_not_matter():
    shuffled, whole = cases(20), split(cases(20), 7, 0.1, 0.2)
    random.Random(3).shuffle(shuffled)
    assert split(shuffled, 7, 0.1, 0.2) == whole
    first = [case.name for case in whole.test]
    assert first != [case.name for case in split(cases(20), 8, 0.1, 0.2).test]
    assert first != [case.name for case in split(cases(20, "south"), 7, 0.1, 0.2).test]


def test_the_split_of_a_seed_is_the_same_on_every_machine():
    """`printf '7\\x1fnorth\\x1fp00' | sha256sum` begins with 1b37; p01 to p05: 6435, b0b6, be50, 6948, 9f52."""
    parts = split(cases(6), 7, 0.2, 0.2)
    assert [case.name for case in parts.validation + parts.test] == ["p00_0", "p01_0"]


def test_one_patient_more_moves_few():
    """The ranks of the others stay, so nobody passes more than one border."""
    of_40, of_41 = split(cases(40), 7, 0.1, 0.2), split(cases(41), 7, 0.1, 0.2)
    in_both = {case.name for case in of_40.train} & {case.name for case in of_41.train}
    assert len(in_both) >= len(of_40.train) - 2


def test_few_patients_go_to_training_then_validation_then_test_and_a_ratio_of_zero_takes_nobody():
    few = [(0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1), (2, 1, 1)]
    assert [sizes(n, 0.1, 0.2) for n in range(5)] == few
    assert sizes(3, 0.5, 0.49) == (1, 1, 1)
    assert sizes(2, 0.0, 0.9) == (1, 0, 1)
    assert sizes(10, 0.0, 0.0) == (10, 0, 0)


def test_a_published_split_decides_and_validation_comes_out_of_its_training_part():
    cases = [Case("A", f"{i:02d}", Path("i"), part="train" if i < 20 else "test") for i in range(30)]
    parts = split(cases, 0, 0.1, 0.5)
    assert [case.name for case in parts.test] == [f"{i}" for i in range(20, 30)]
    assert len(parts.validation) == 2 and len(parts.train) == 18
    assert len(split(cases, 0, 0.0, 0.5).train) == 20
