"""The Wilcoxon test and Holm's correction."""

import pytest

from medfed.metrics.significance import holm, wilcoxon_test


def test_holm_multiplies_the_smallest_p_by_the_number_of_tests_and_keeps_the_order():
    """0.01 * 3 = 0.03; 0.03 * 2 = 0.06; 0.04 * 1 = 0.04, but not below the 0.06 before it."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0], "0.8 * 2 is more than 1"
    assert holm([0.02]) == [0.02] and holm([]) == []


def test_six_pairs_of_one_sign_are_significant_at_two_in_64_whichever_comes_first():
    """2 / 2**6 is the exact two-sided p; a case that only one of the two has is left out."""
    zero = {(k,): 0.0 for k in range(6)}
    better = {(k,): 0.01 * (k + 1) for k in range(7)}
    expected = {"p": pytest.approx(2 / 64), "n": 6}
    assert wilcoxon_test(better, zero) == expected | {"rank_sign": 1}
    assert wilcoxon_test(zero, better) == expected | {"rank_sign": -1}


@pytest.mark.parametrize("differences", [[0.1] * 5, [0.0] * 8, [1e-17, -1e-16] * 4, [0.1, 0.2, 0.3] + [0.0] * 5])
def test_fewer_than_six_differences_give_no_p_value(differences):
    """Of five differences of one sign, 2 of 2**5 assignments of signs are as extreme: p could not be below 0.0625."""
    own = {(k,): difference for k, difference in enumerate(differences)}
    result = wilcoxon_test(own, dict.fromkeys(own, 0.0))
    assert (result["p"], result["n"]) == (None, len(differences))
