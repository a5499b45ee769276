"""Holm's correction and the smallest possible p value."""

import pytest

from medfed.metrics.significance import holm, smallest_p, wilcoxon_test


def test_holm_multiplies_the_smallest_p_by_the_number_of_tests_and_keeps_the_order():
    """0.01 * 3 = 0.03; 0.03 * 2 = 0.06; 0.04 * 1 = 0.04, but not below the 0.06 before it."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0], "0.8 * 2 is more than 1"
    assert holm([0.02]) == [0.02] and holm([]) == []


def test_five_patients_cannot_be_significant_and_the_reason_says_so():
    """All five differences have one sign: 2 of 2**5 assignments of signs are as extreme."""
    assert smallest_p(5) == 0.0625 and smallest_p(8, n_tests=18) == pytest.approx(18 / 128)
    better = {(k,): 0.1 * (k + 1) for k in range(5)}
    result = wilcoxon_test(better, dict.fromkeys(better, 0.0), "patients")
    assert result["p"] is None and "p cannot be below 0.0625 with 5" in result["reason"]


def test_six_pairs_of_one_sign_are_significant_at_two_in_64_whichever_comes_first():
    """2 / 2**6 is the exact two-sided p; a case that only one of the two has is left out."""
    zero = {(k,): 0.0 for k in range(6)}
    better = {(k,): 0.01 * (k + 1) for k in range(7)}
    result = wilcoxon_test(better, zero, "patients")
    assert result == {"p": pytest.approx(2 / 64), "n": 6, "n_differ": 6, "reason": None}
    assert wilcoxon_test(zero, better, "patients") == result


@pytest.mark.parametrize(
    ("differences", "n_differ", "words"),
    [
        ([0.1] * 5, 5, "only 5 matched patients"),
        ([0.0] * 8, 0, "all 8 matched patients score the same"),
        ([1e-17, -1e-16] * 4, 0, "score the same"),
        ([0.1, 0.2, 0.3] + [0.0] * 5, 3, "only 3 of 8 matched patients differ"),
    ],
)
def test_too_few_differences_give_a_reason_instead_of_a_p_value(differences, n_differ, words):
    own = {(k,): difference for k, difference in enumerate(differences)}
    result = wilcoxon_test(own, dict.fromkeys(own, 0.0), "patients")
    assert result["p"] is None and words in result["reason"]
    assert (result["n"], result["n_differ"]) == (len(differences), n_differ)
