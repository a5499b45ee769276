from medfed.federation.selection import RULES

HISTORY = [{"round": n, "validation_score": dice} for n, dice in ((1, 0.5), (2, 0.8), (3, None), (4, 0.8), (5, 0.7))]


def test_the_earliest_of_equally_good_rounds_is_selected_and_without_a_score_the_last_one():
    assert RULES["last"](HISTORY) == 5
    assert RULES["source_validation"](HISTORY) == 2
    assert RULES["source_validation"]([{"round": n, "validation_score": None} for n in (1, 2)]) == 2


def test_the_score_of_the_validation_site_selects_the_round_whatever_the_other_sites_scores_are():
    history = [row | {"validation_site_score": score} for row, score in zip(HISTORY, (0.3, 0.1, 0.6, 0.6, None))]
    assert RULES["validation_site"](history) == 3
    assert RULES["validation_site"](HISTORY) == 5
