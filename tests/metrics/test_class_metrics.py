"""Metrics of classified images, compared with brute force, MONAI and values computed by hand."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from monai.metrics import compute_roc_auc
from sklearn.metrics import auc

from medfed.metrics.class_metric import MAX_PATIENTS, ClassMetric, compute_class_metric, jackknife_values
from medfed.metrics.classes.accuracy import Accuracy
from medfed.metrics.classes.auroc import AreaUnderROC
from medfed.metrics.classes.balanced_accuracy import BalancedAccuracy
from medfed.metrics.classes.ece import ExpectedCalibrationError
from medfed.outputs.figures.classes import macro_roc_curve

METRICS = (Accuracy(), BalancedAccuracy(), AreaUnderROC(), ExpectedCalibrationError())


accuracy, balanced_accuracy, auroc, expected_calibration_error = (
    partial(compute_class_metric, metric) for metric in METRICS
)


def two(*of_class_1):
    """Return probabilities (N, 2) from those of class 1."""
    second = np.array(of_class_1, dtype=np.float64)
    return np.stack([1 - second, second], axis=1)


def random_images(n, n_classes, seed=0, levels=8):
    """Return rounded probabilities, so that there are many ties."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(1, levels, (n, n_classes)).astype(np.float64)
    return raw / raw.sum(axis=1, keepdims=True), rng.integers(0, n_classes, n)


def pairs(score, positive):
    """Return the fraction of pairs of a positive and a negative image in the right order; ties count one half."""
    result = [(p > n) + (p == n) / 2 for p in score[positive] for n in score[~positive]]
    return np.mean(result)


def test_accuracy_is_the_fraction_of_images_and_balanced_accuracy_the_mean_recall():
    """Three of class 0 all right, one of class 1 wrong: 3/4; recalls 1 and 0: 1/2. A class without images has none."""
    probabilities, labels = two(0.1, 0.2, 0.3, 0.4), np.array([0, 0, 0, 1])
    assert accuracy(probabilities, labels) == 0.75
    assert balanced_accuracy(probabilities, labels) == 0.5
    probabilities = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.6, 0.3, 0.1]])
    assert balanced_accuracy(probabilities, np.array([0, 1, 1])) == 0.75


@pytest.mark.parametrize("seed", range(5))
def test_auroc_of_two_classes_counts_pairs_with_ties_one_half_and_agrees_with_monai(seed):
    probabilities, labels = random_images(60, 2, seed)
    assert auroc(probabilities, labels) == pytest.approx(pairs(probabilities[:, 1], labels == 1), abs=1e-12)
    theirs = compute_roc_auc(torch.tensor(probabilities[:, 1]), torch.tensor(labels))
    assert auroc(probabilities, labels) == pytest.approx(float(theirs), abs=1e-12)


def test_auroc_of_several_classes_is_the_mean_of_one_versus_rest():
    probabilities, labels = random_images(50, 4)
    expected = np.mean([pairs(probabilities[:, k], labels == k) for k in range(4)])
    assert auroc(probabilities, labels) == pytest.approx(expected, abs=1e-12)
    theirs = compute_roc_auc(torch.tensor(probabilities), torch.eye(4, dtype=torch.float64)[torch.tensor(labels)])
    assert expected == pytest.approx(float(theirs), abs=1e-12)


def test_a_class_without_images_is_left_out_of_the_mean_where_monai_has_nan():
    probabilities, labels = random_images(50, 3)
    labels[labels == 2] = 0
    expected = np.mean([pairs(probabilities[:, k], labels == k) for k in (0, 1)])
    assert auroc(probabilities, labels) == pytest.approx(expected, abs=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.isnan(compute_roc_auc(torch.tensor(probabilities), torch.eye(3)[torch.tensor(labels)]))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_single_class_has_no_auroc_and_no_curve_and_without_images_all_values_are_unknown(n_classes):
    probabilities, labels = random_images(9, n_classes)[0], np.full(9, 1)
    assert auroc(probabilities, labels) is None
    assert macro_roc_curve(probabilities, labels)[0].size == 0
    for score in (accuracy, balanced_accuracy, auroc, expected_calibration_error):
        assert score(np.zeros((0, 2)), np.zeros(0, dtype=int)) is None


def test_calibration_error_by_hand():
    """Two bins. Confidence 0.95 twice, one right: |0.5 - 0.95| = 0.45. Confidence 0.6 and 0.62, both right:
    |1 - 0.61| = 0.39, though 0.6 = 9/15 is the upper end of its bin and 0.62 lies in the next: 0.40 and 0.38.
    All weigh by images: (2 * 0.45 + 0.40 + 0.38) / 4 = 0.42.
    """
    probabilities, labels = two(0.95, 0.95, 0.60, 0.62), np.array([1, 0, 1, 1])
    assert expected_calibration_error(probabilities, labels) == pytest.approx(0.42)
    assert expected_calibration_error(two(0.75, 0.75, 0.75, 0.75), np.array([1, 1, 1, 0])) == 0, "three of four"
    assert expected_calibration_error(two(1.0, 0.0), np.array([1, 0])) == 0


def test_the_roc_curve_by_hand():
    """Scores 0.9+, 0.5+, 0.5-, 0.1-: one step up, one diagonal at the tie, one step to the right."""
    false, true = macro_roc_curve(two(0.5, 0.9, 0.1, 0.5), np.array([1, 1, 0, 0]))
    assert list(dict.fromkeys(zip(false, true))) == [(0, 0), (0, 0.5), (0.5, 1), (1, 1)]


@pytest.mark.parametrize("n_classes", [2, 3, 5])
def test_the_area_under_the_drawn_curve_is_the_auroc(n_classes):
    probabilities, labels = random_images(60, n_classes)
    curve = macro_roc_curve(probabilities, labels)
    assert auc(*curve) == pytest.approx(auroc(probabilities, labels), abs=1e-12)
    assert (curve[0][0], curve[1][0], curve[0][-1], curve[1][-1]) == (0, 0, 1, 1)


@pytest.mark.parametrize(
    ("probabilities", "labels", "words"),
    [
        (two(0.5), [2], "from 0 to 1"),
        (two(0.5), [0, 1], "must be"),
        (np.ones((3, 1)), [0, 0, 0], "K at least 2"),
        (two(1.5), [1], r"in \[0, 1\]"),
        (two(np.nan), [1], r"in \[0, 1\]"),
    ],
)
def test_wrong_arguments_are_rejected(probabilities, labels, words):
    with pytest.raises(ValueError, match=words):
        accuracy(probabilities, np.array(labels))


@pytest.mark.parametrize(("n", "n_patients", "k"), [(60, 20, 2), (60, 20, 4), (50, 50, 3), (7, 4, 2)])
def test_the_fast_values_without_each_patient_are_those_of_computing_again(n, n_patients, k):
    """Probabilities with one decimal have many ties; some patients have several images of several classes."""
    rng = np.random.default_rng(n)
    probabilities = np.round(rng.dirichlet(np.ones(k), n), 1)
    images = probabilities, rng.integers(0, k, n), np.r_[:n_patients, rng.integers(0, n_patients, n - n_patients)]
    for metric in METRICS[:3]:
        expected = ClassMetric.values_without_each_patient(metric, *images)
        with np.errstate(invalid="ignore"):
            actual = metric.values_without_each_patient(*images)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


def test_the_jackknife_values_of_the_accuracy_are_those_of_the_images_and_their_mean_is_the_metric():
    images = random_images(40, 3)
    correct = images[0].argmax(axis=1) == images[1]
    np.testing.assert_allclose(jackknife_values(METRICS[0], *images, np.arange(40)), correct, atol=1e-12)
    patient_of = np.arange(40) % 13
    values = jackknife_values(METRICS[2], *images, patient_of)
    assert values.shape == (13,) and values.mean() == pytest.approx(auroc(*images), abs=1e-12)


def test_no_jackknife_values_without_an_interval_for_one_patient_or_if_a_patient_has_the_only_images_of_a_class():
    images = two(0.1, 0.6, 0.9), np.array([0, 0, 1])
    assert np.isnan(jackknife_values(METRICS[3], *images, np.arange(3))).all()
    assert np.isnan(jackknife_values(METRICS[0], *images, np.zeros(3, dtype=int))).all()
    assert np.isnan(jackknife_values(METRICS[2], *images, np.arange(3))).all()


class Gini(AreaUnderROC):
    def value(self, probabilities, labels):
        return 2 * super().value(probabilities, labels) - 1


def test_a_metric_that_inherits_from_auroc_is_computed_with_its_own_value_unless_there_are_too_many_patients():
    images = two(0.1, 0.6, 0.4, 0.9, 0.3), np.array([0, 0, 1, 1, 0]), np.arange(5)
    gini, area = (jackknife_values(metric, *images) for metric in (Gini(), AreaUnderROC()))
    assert gini == pytest.approx(2 * area - 1)
    n = MAX_PATIENTS + 1
    gini, area = (jackknife_values(metric, *random_images(n, 2), np.arange(n)) for metric in (Gini(), AreaUnderROC()))
    assert np.isnan(gini).all() and np.isfinite(area).all()
