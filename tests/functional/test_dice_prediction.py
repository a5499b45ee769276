"""The agreement of masks, the line from agreement to Dice, its interval, and the risk-coverage curve, by hand."""

import math

import pytest
import scipy.stats
import torch

from medfed.functional.dice_prediction import Calibration, PairSums, agreement, dice, risk_coverage


def mask(text: str) -> torch.Tensor:
    return torch.tensor([int(sign) for sign in text])


def test_two_empty_masks_agree_and_an_empty_one_never_agrees_with_another():
    assert dice(mask("0000"), mask("0000")) == 1.0
    assert dice(mask("0000"), mask("0100")) == 0.0
    assert dice(mask("1100"), mask("0110")) == 0.5


def test_the_agreement_is_the_mean_dice_with_the_members():
    members = [mask("1100"), mask("0110"), mask("0011")]  # Dice 1, 0.5 and 0
    assert agreement(mask("1100"), members) == 0.5


PAIRS = {"A": [(0.2, 0.1), (0.4, 0.3), (0.6, 0.5)], "B": [(0.4, 0.3), (0.8, 0.7), (0.6, 0.5)]}  # y = x - 0.1


def test_sums_of_parts_are_the_sums_of_all_pairs():
    parts = [PairSums.of(pairs) for pairs in PAIRS.values()]
    total = PairSums.of([*PAIRS["A"], *PAIRS["B"]])
    assert parts[0] == PairSums(3, *(pytest.approx(value) for value in (1.2, 0.9, 0.56, 0.44, 0.35)))
    joined = PairSums.total(parts)
    assert joined == total and joined.line() == pytest.approx((-0.1, 1.0))
    assert joined.squared_error(0.0, 1.0) == pytest.approx(6 * 0.01)


def test_a_line_that_would_fall_is_the_mean():
    assert PairSums.of([(0.1, 0.9), (0.9, 0.5)]).line() == pytest.approx((0.7, 0.0))
    assert PairSums.of([(0.3, 0.9), (0.3, 0.5)]).line() == pytest.approx((0.7, 0.0))


def test_the_error_is_that_of_the_other_sites_line():
    low = [(x / 10, x / 10) for x in range(1, 6)]  # y = x
    high = [(x / 10, x / 10 + 0.2) for x in range(1, 6)]  # y = x + 0.2
    calibration = Calibration.fit({"A": PairSums.of(low), "B": PairSums.of(high)})
    assert calibration.is_between_sites and calibration.error == pytest.approx(0.2)
    # The constant of the other site is 0.2 away from the mean of a site, whose variance is 0.02.
    assert calibration.constant_error == pytest.approx(math.sqrt(0.02 + 0.04))


def test_too_few_pairs_give_no_calibration_and_one_site_the_residuals():
    assert Calibration.fit({"A": PairSums.of(PAIRS["A"])}) is None
    pairs = [(0.2, 0.3), (0.2, 0.1), (0.6, 0.7), (0.6, 0.5), (0.4, 0.4)]  # y = x, with the residuals 0.1 and 0
    calibration = Calibration.fit({"A": PairSums.of(pairs)})
    assert not calibration.is_between_sites and calibration.error == pytest.approx(math.sqrt(0.04 / 3))


def test_the_interval_is_that_of_a_new_observation_and_is_cut_to_possible_values():
    pairs = [(0.2, 0.3), (0.2, 0.1), (0.6, 0.7), (0.6, 0.5), (0.4, 0.4)]
    assert Calibration.fit({"A": PairSums.of(pairs)}).predict(0.6).low is None  # no site can be left out
    calibration = Calibration(PairSums.of(pairs), 0.1, 0.2, is_between_sites=True)
    prediction = calibration.predict(0.6)
    half = scipy.stats.t.ppf(0.975, 3) * calibration.error * math.sqrt(1 + 1 / 5 + 0.2**2 / 0.16)
    assert prediction.dice == pytest.approx(0.6) and prediction.low == pytest.approx(0.6 - half)
    assert prediction.high == pytest.approx(0.6 + half) and not prediction.is_extrapolated
    far = calibration.predict(1.0)
    assert (
        far.dice == far.high == 1.0
        and far.is_extrapolated
        and far.low == pytest.approx(1.0 - half * math.sqrt((1.2 + 0.6**2 / 0.16) / (1.2 + 0.2**2 / 0.16)))
    )


def test_the_risk_coverage_curve_is_the_mean_risk_of_the_most_confident():
    curve = risk_coverage([0.9, 0.5, 0.7, 0.5], [0.0, 0.4, 0.2, 0.8])
    assert curve == [(0.25, 0.0), (0.5, pytest.approx(0.1)), (1.0, pytest.approx(0.35))]
    assert risk_coverage([], []) == []


def test_the_correlation_follows_from_the_sums():
    assert PairSums.of([(0.1, 0.2), (0.2, 0.4), (0.3, 0.6)]).correlation == pytest.approx(1)
    assert PairSums.of([(0.1, 0.6), (0.2, 0.4), (0.3, 0.2)]).correlation == pytest.approx(-1)
    assert PairSums.of([(0.5, 0.6), (0.5, 0.4)]).correlation is None
