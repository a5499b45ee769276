from medfed.federation.selection import best_source_round, best_validation_site_round, last_round

HISTORY = [{"round": n, "validation_score": dice} for n, dice in ((1, 0.5), (2, 0.8), (3, None), (4, 0.8), (5, 0.7))]


def test_the_earliest_of_equally_good_rounds_is_selected_and_without_a_score_the_last_one():
    assert last_round(HISTORY) == 5
    assert best_source_round(HISTORY) == 2
    assert best_source_round([{"round": 1, "validation_score": None}, {"round": 2, "validation_score": None}]) == 2


def test_the_score_of_the_validation_site_selects_the_round_whatever_the_other_sites_scores_are():
    history = [row | {"validation_site_score": score} for row, score in zip(HISTORY, (0.3, 0.1, 0.6, 0.6, None))]
    assert best_validation_site_round(history) == 3
    assert best_validation_site_round(HISTORY) == 5
