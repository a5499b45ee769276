from medfed.federation.selection import last, source_validation, validation_site

HISTORY = [{"round": n, "validation_score": dice} for n, dice in ((1, 0.5), (2, 0.8), (3, None), (4, 0.8), (5, 0.7))]


def test_last_is_the_last():
    assert last(HISTORY) == 5


def test_source_validation_takes_the_earliest_of_the_best():
    assert source_validation(HISTORY) == 2


def test_without_validation_patients_the_last_round_is_the_result():
    assert source_validation([{"round": 1, "validation_score": None}, {"round": 2, "validation_score": None}]) == 2


def test_the_validation_site_decides_alone():
    history = [row | {"validation_site_score": score} for row, score in zip(HISTORY, (0.3, 0.1, 0.6, 0.6, None))]
    assert validation_site(history) == 3
    assert validation_site(HISTORY) == 5
