"""Tests of the audit's measures on sites for which the correct results are known."""

from dataclasses import replace

import pytest
import torch

from medfed.auditing.identification import identify_sites, leave_one_out, reidentify
from medfed.auditing.membership import auc_with_interval, membership_inference
from medfed.auditing.reconstruction import reconstruct
from medfed.auditing.sharing import SharedStatistics
from medfed.federation.privacy import Privacy
from medfed.methods.ccst import CCST
from medfed.methods.elcfs import ELCFS
from medfed.methods.harmofl import HarmoFL


def shared_of_sites(toy, method) -> list[SharedStatistics]:
    weights = toy.start(method).weights
    return [SharedStatistics.from_site(site, weights) for site in toy.engine(method).local_sites]


def test_an_image_is_re_identified_by_its_window_among_ten_and_less_often_by_one_number(toy):
    actual = reidentify(shared_of_sites(toy, ELCFS(alpha=0.1))[0], 10, mirror_axis=-1)
    assert actual["n"] == 10
    rates = actual["perturbations"]
    assert rates["noise"]["top_1"] >= 0.8 and rates["noise"]["chance"] == pytest.approx(0.1)
    assert rates["neighbour"]["chance"] == pytest.approx(1 / 9)  # of two images a patient, one does not count
    one_number = reidentify(shared_of_sites(toy, ELCFS(alpha=0.0))[0], 10, -1)
    assert one_number["perturbations"]["copy"]["top_1"] < rates["copy"]["top_1"]


def noisy(toy, noise: float, clip: float = 1.0) -> SharedStatistics:
    method, privacy = ELCFS(alpha=0.1), Privacy(statistics_clip=clip, statistics_noise=noise)
    site = replace(toy.engine(method).local_sites[0], privacy=privacy)
    return SharedStatistics.from_site(site, toy.start(method).weights)


def test_the_attacker_compares_without_noise_and_undoes_the_clipping(toy):
    """Only what the site sends has noise, so that noise too small to hide anything changes no result."""
    clear = shared_of_sites(toy, ELCFS(alpha=0.1))[0]
    held_out = toy.samples("north validation", 10)
    for shared in (noisy(toy, 0.0), noisy(toy, 1e-7), noisy(toy, 1e-7, clip=1e-3)):
        assert reidentify(shared, 10, -1) == reidentify(clear, 10, -1)
        assert membership_inference(shared, held_out)["same_images"] == {"auc": 1.0, "low": 1.0, "high": 1.0}
    loud = reidentify(noisy(toy, 1.0), 10, -1)
    assert loud["n"] == 10 and loud["perturbations"]["copy"]["top_1"] < 0.6


def test_only_images_whose_window_was_sent_are_in_the_gallery(toy):
    actual = reidentify(shared_of_sites(toy, ELCFS(alpha=0.1, bank_share=0.4))[0], 10, mirror_axis=-1)
    assert actual["n"] == 4
    assert reidentify(shared_of_sites(toy, HarmoFL(half_width=2))[0], 10, -1) is None


def test_auc_has_the_computed_values():
    """Of 2 x 2 pairs three are ordered correctly and one is a tie: 3.5 / 4."""
    assert auc_with_interval([3.0, 2.0], [2.0, 1.0], 0)["auc"] == 0.875
    assert auc_with_interval([2.0, 1.0], [3.0, 2.0], 0)["auc"] == 0.125
    assert auc_with_interval([0.0] * 5, [0.0] * 7, 0) == {"auc": 0.5, "low": 0.5, "high": 0.5}


def test_the_interval_contains_the_auc_and_narrows_with_more_patients():
    rng = torch.Generator().manual_seed(0)
    widths = []
    for n in (6, 60):
        members, others = torch.randn(n, generator=rng) + 0.5, torch.randn(n, generator=rng)
        result = auc_with_interval(members, others, 0)
        assert result["low"] <= result["auc"] <= result["high"]
        widths.append(result["high"] - result["low"])
    assert widths[1] < widths[0] / 2


def test_windows_of_images_reveal_membership_with_certainty(toy):
    shared = shared_of_sites(toy, ELCFS(alpha=0.1))[0]
    actual = membership_inference(shared, toy.samples("north validation", 10))
    assert (actual["members"], actual["others"]) == (5, 5)
    assert actual["same_images"] == {"auc": 1.0, "low": 1.0, "high": 1.0}
    assert membership_inference(shared, None) is None and membership_inference(shared, toy.samples("north", 2)) is None


def test_sites_with_different_brightness_are_identified_and_equal_ones_are_not(toy):
    sites = shared_of_sites(toy, CCST(transfer="moments"))
    actual = identify_sites(sites)
    assert actual["top_1"] == 1 and actual["chance"] == pytest.approx(1 / 3) and actual["sites"] == 3
    assert identify_sites(sites[:1]) is None
    assert identify_sites([sites[0], sites[0]])["top_1"] <= 0.7


def test_leaving_one_patient_out_changes_the_mean_by_the_computed_value(toy):
    """The shared windows are averaged, so removing patient p changes the mean by (mean of the others - mean of all)."""
    shared, *others = shared_of_sites(toy, HarmoFL(half_width=2))
    actual = leave_one_out(shared, others)
    rows = torch.cat([shared.vectors(shared.statistics_of(shared.site.training.batch([place]))) for place in range(10)])
    without = [torch.cat([rows[: 2 * p], rows[2 * p + 2 :]]).mean(dim=0) for p in range(5)]
    changes = torch.stack([(one - rows.mean(dim=0)).norm() for one in without]) / rows.mean(dim=0).norm()
    assert actual["patients"] == 5
    assert actual["largest_change"] == pytest.approx(float(changes.max()), rel=1e-4)
    assert actual["mean_change"] == pytest.approx(float(changes.mean()), rel=1e-4)
    assert 0 < actual["of_distance"] < 1


def test_reconstruction_succeeds_with_the_full_spectrum_and_fails_with_the_window(toy):
    (actual,) = reconstruct(shared_of_sites(toy, ELCFS(alpha=0.1))[0], 1, n_steps=1500)
    assert list(actual.scores) == ["full", "window", "fitted", "mean"]
    assert actual.scores["full"]["detail_correlation"] > 0.9
    assert abs(actual.scores["window"]["detail_correlation"]) < 0.25
    assert abs(actual.scores["fitted"]["detail_correlation"]) < 0.25
    assert actual.scores["fitted"]["misfit"] < 0.2  # the attack does reach the statistic


def test_the_gradient_fit_works_for_a_style_without_a_window(toy):
    (actual,) = reconstruct(shared_of_sites(toy, CCST(transfer="moments"))[0], 1, n_steps=50)
    assert list(actual.scores) == ["full", "fitted", "mean"]
    assert actual.scores["fitted"]["misfit"] < 0.05
