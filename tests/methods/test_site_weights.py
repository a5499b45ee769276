import pytest

from medfed.methods.feddg_ga import add_new_sites, adjust_site_weights

THREE = {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}
ALL = ("a", "b", "c")


def test_gaps_of_three_sites_by_hand():
    """Gaps .3, .1, .2 and d = .2: the mean is .2, the largest distance .1, so +.2, -.2 and 0 (the paper's rule)."""
    result = adjust_site_weights(THREE, ALL, {"a": 0.3, "b": 0.1, "c": 0.2}, 0.2)
    assert result == pytest.approx({"a": 1 / 3 + 0.2, "b": 1 / 3 - 0.2, "c": 1 / 3})


@pytest.mark.parametrize(
    "gaps, step",
    [({"a": 0.5, "b": 0.5, "c": 0.5}, 0.2), ({"a": 0.9, "b": 0.1, "c": 0.4}, 0.0), ({}, 0.2), ({"a": 3.0}, 0.2)],
)
def test_equal_gaps_no_step_or_nothing_to_compare_change_nothing(gaps, step):
    assert adjust_site_weights(THREE, ALL, gaps, step) == THREE


def test_weights_are_clipped_at_zero_and_keep_their_sum():
    """.1 - .2 is cut to 0; .1 + .1 = .2 and .8 + .1 = .9 share 1: 2/11 and 9/11."""
    result = adjust_site_weights({"a": 0.1, "b": 0.1, "c": 0.8}, ALL, {"a": 0.0, "b": 3.0, "c": 3.0}, 0.2)
    assert result == pytest.approx({"a": 0.0, "b": 2 / 11, "c": 9 / 11})


def test_a_larger_gap_gets_a_larger_weight():
    result = adjust_site_weights(THREE, ALL, {"a": -0.5, "b": 0.1, "c": 2.0}, 0.1)
    assert result["a"] < result["b"] < result["c"] and sum(result.values()) == pytest.approx(1)


def test_an_absent_site_keeps_its_weight():
    result = adjust_site_weights({"a": 0.5, "b": 0.3, "c": 0.2}, ("b", "c"), {"b": 1.0, "c": 0.0}, 0.1)
    assert result["a"] == 0.5 and result == pytest.approx({"a": 0.5, "b": 0.4, "c": 0.1})


def test_a_site_without_a_gap_stays_where_it_is():
    result = adjust_site_weights(THREE, ALL, {"a": 1.0, "b": 0.0}, 0.1)
    assert result == pytest.approx({"a": 1 / 3 + 0.1, "b": 1 / 3 - 0.1, "c": 1 / 3})


def test_new_sites_get_the_mean_weight():
    assert add_new_sites({}, ["b", "a", "c", "d"]) == pytest.approx(dict.fromkeys("abcd", 0.25))
    assert add_new_sites({"a": 0.8, "b": 0.2}, ["b", "c"]) == pytest.approx(
        {"a": 0.8 / 1.5, "b": 0.2 / 1.5, "c": 1 / 3}
    )
