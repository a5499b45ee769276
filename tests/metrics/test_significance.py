"""Holm's correction, the smallest possible p value, and the stability of ranks."""

import numpy as np
import pytest

from medfed.metrics.ranking import Rank, rank_methods
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


def test_a_method_that_is_best_for_every_patient_is_first_in_every_sample():
    values = np.random.default_rng(0).uniform(0.5, 0.8, 10)
    best, second, last = rank_methods([np.stack([values + 0.1, values, values - 0.1])], True, ("a",))
    assert best == Rank(1, 1, 1, 1.0) and second == Rank(2, 2, 2, 0.0) and last == Rank(3, 3, 3, 0.0)
    assert rank_methods([np.stack([values + 0.1, values])], False, ("a",))[0].rank == 2, "lower is better"


def test_the_share_of_first_ranks_of_two_patients_by_hand():
    """A is better for patient 1 and B for patient 2 by the same amount, so each is first in 3/4 of the samples.

    A sample draws patient 1 twice (A first), both (a tie: both first) or patient 2 twice, with probabilities 1/4, 1/2
    and 1/4.
    """
    first, second = rank_methods([np.array([[1.0, 0.0], [0.0, 1.0]])], True, ("a",))
    assert (first.rank, second.rank) == (1, 1) and (first.low, first.high) == (1, 2)
    assert first.first_share == pytest.approx(0.75, abs=0.03)
    assert first.first_share + second.first_share == pytest.approx(1.5, abs=0.03)


def test_ranks_weight_sites_equally_and_are_the_same_for_the_same_seed():
    """A gains 1 at a site of 1 patient and loses 0.6 at a site of 9: its average over sites is better."""
    sites = [np.array([[1.0], [0.0]]), np.stack([np.zeros(9), np.full(9, 0.6)])]
    assert [rank.rank for rank in rank_methods(sites, True, ("a",))] == [1, 2]
    noisy = [np.random.default_rng(0).normal(size=(3, 12))]
    assert rank_methods(noisy, True, ("a",)) == rank_methods(noisy, True, ("a",))
