"""Intervals of means, of averages over sites, and the detectable difference: worked by hand and by simulation."""

import math

import numpy as np
import pytest
from scipy import special, stats

from medfed.metrics.intervals import Estimate, estimate_average, estimate_mean, interval

LARGE = 1e9  # degrees of freedom at which Student's t is the normal distribution


def test_an_interval_without_limits_is_the_mean_and_t_standard_errors():
    """1, 2, 3, 4, 5: mean 3, sd sqrt(2.5), se sqrt(2.5 / 5); the 97.5 % quantile of t with 4 df is 2.776445."""
    estimate = estimate_mean([1, 2, 3, 4, 5])
    assert (estimate.mean, estimate.df, estimate.n) == (3, 4, 5)
    half = 2.776445 * math.sqrt(0.5)
    assert interval(estimate) == pytest.approx((3 - half, 3 + half), abs=1e-5)
    assert interval(estimate, (0, math.inf)) == interval(estimate), "cut at a limit that it does not reach"
    assert interval(estimate, (2, math.inf))[0] == 2


def test_an_interval_between_two_limits_is_symmetric_on_the_logit_scale():
    """Mean 0.8, se 0.04 and normal quantiles: logit(0.8) = log(4); half = 1.96 * 0.04 / (0.8 * 0.2) = 0.49."""
    estimate = Estimate(0.8, 0.04, LARGE, 100, 100)
    low, high = interval(estimate, (0, 1))
    assert low == pytest.approx(special.expit(math.log(4) - 0.49), abs=1e-4)
    assert high == pytest.approx(special.expit(math.log(4) + 0.49), abs=1e-4)
    assert 0.8 - low > high - 0.8, "there is more room below 0.8"
    percent = interval(Estimate(80, 4, LARGE, 100, 100), (0, 100))
    assert percent == pytest.approx((100 * low, 100 * high))
    assert interval(Estimate(0.2, 0.04, LARGE, 100, 100), (0, 1)) == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize("values", [[], [0.5], [0.5, 0.6, 0.7, 0.8], [0.7] * 9])
def test_there_is_no_interval_below_five_patients_or_without_a_spread(values):
    assert interval(estimate_mean(values), (0, 1)) == (None, None)


def test_an_average_over_sites_has_the_error_and_the_degrees_of_freedom_of_welch_and_satterthwaite():
    """Variances 1 and 4: se = sqrt(5) / 2; df = 25 / (1 / 4 + 16 / 9), with 4 and 9 df."""
    average = estimate_average([Estimate(10, 1, 4, 5, 5), Estimate(20, 2, 9, 10, 10)])
    assert average.mean == 15 and average.n == 15 and average.n_smallest == 5
    assert average.se == pytest.approx(math.sqrt(5) / 2)
    assert average.df == pytest.approx(25 / (1 / 4 + 16 / 9))
    assert estimate_average([average, None]) is None
    assert interval(estimate_average([average, Estimate(1, 1, 2, 3, 3)])) == (None, None), "a site with 3 patients"


def test_two_sites_have_the_interval_of_welch_s_test_of_scipy():
    """The average of A and B is half of the difference of A and -B."""
    a, b = np.array([1.0, 2, 4, 8, 16]), np.array([3.0, 3, 5, 7, 9, 20, 21])
    expected = stats.ttest_ind(a, -b, equal_var=False).confidence_interval(0.95)
    low, high = interval(estimate_average([estimate_mean(a), estimate_mean(b)]))
    assert (low, high) == pytest.approx((expected.low / 2, expected.high / 2))


def test_the_interval_contains_the_true_mean_as_often_as_it_claims():
    """Dice of 13 patients without failures: 95 %. A percentile bootstrap contains it in about 91 %."""
    rng = np.random.default_rng(0)
    ends = [interval(estimate_mean(rng.beta(30, 4, 13)), (0, 1)) for _ in range(600)]
    assert np.mean([low <= 30 / 34 <= high for low, high in ends]) == pytest.approx(0.95, abs=0.02)
