"""The calibration error of masks, worked out by hand and compared with scikit-learn."""

import numpy as np
import pytest
from brute_force import empty, filled
from sklearn.calibration import calibration_curve

from medfed.metrics.mask_metric import compute_mask_metrics
from medfed.metrics.masks.mask_ece import MaskCalibrationError

S = np.s_
SHAPE = (12, 12, 1)
ORGAN = filled(SHAPE, S[2:6, 2:6])  # with the margin of one pixel, the box is 6 x 6 pixels, 16 of which are the organ
ALL, NOTHING = np.ones(SHAPE), empty(*SHAPE)


def ece(probability, prediction=ORGAN, reference=ORGAN):
    return compute_mask_metrics([MaskCalibrationError()], prediction, reference, None, probability)["ece"]


@pytest.mark.parametrize(
    ("probability", "expected"),
    [(ORGAN.astype(float), 0.0), (1.0 - ORGAN, 1.0), (0.5 * ALL, 0.5 - 16 / 36), (0.2 + 0.6 * ORGAN, 0.2)],
)
def test_the_error_is_the_difference_of_probability_and_frequency_in_the_box_of_the_structure(probability, expected):
    assert ece(probability) == pytest.approx(expected, abs=1e-12)


def test_neither_background_nor_a_false_positive_far_away_changes_the_error():
    probability, larger, far = 0.5 * ALL, np.zeros((200, 300, 1)), ORGAN.copy()
    larger[:12, :12] = probability
    far[11, 11] = 1
    in_larger = [np.pad(mask, ((0, 188), (0, 288), (0, 0))) for mask in (far, ORGAN)]
    assert ece(larger, *in_larger) == ece(probability, prediction=far) == ece(probability)


def test_a_missed_structure_and_a_false_alarm_have_their_own_error_and_not_the_worst_one():
    assert ece(0.1 * ALL, prediction=NOTHING) == pytest.approx(16 / 36 - 0.1)
    assert ece(0.6 * ALL, reference=NOTHING) == pytest.approx(0.6)
    assert ece(0.1 * ALL, NOTHING, NOTHING) is None and ece(None) is None


def test_a_volume_has_the_error_that_scikit_learn_computes_in_the_same_box():
    rng = np.random.default_rng(0)
    reference = filled((20, 16, 9), S[5:13, 4:8, 2:7])
    probability = rng.random(reference.shape).astype(np.float32)
    box = S[3:15, 3:9, 0:9]  # a quarter of 8, 4 and 5 voxels on each side, rounded up
    y, p = reference[box].ravel(), probability[box].ravel().astype(float)
    frequency, mean_p = calibration_curve(y, p, n_bins=15)
    share = np.histogram(p, bins=15, range=(0, 1))[0] / p.size
    expected = float(share @ np.abs(frequency - mean_p))
    assert ece(probability, reference, reference) == pytest.approx(expected, abs=1e-9)


def test_probabilities_that_are_no_numbers_have_no_error():
    assert ece(np.nan * ALL) is None
