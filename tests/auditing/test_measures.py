"""The measures of an audit, on sites of which the answers are known."""

import pytest
import torch

from medfed.auditing.linkage import reidentify
from medfed.auditing.membership import auc, bootstrap_interval, membership_inference
from medfed.auditing.reconstruction import reconstruct
from medfed.auditing.sharing import SharedStatistics
from medfed.auditing.site_identification import identify_sites, leave_one_out
from medfed.methods.ccst import CCST
from medfed.methods.elcfs import ELCFS
from medfed.methods.harmofl import HarmoFL


def sharings(toy, method) -> list[SharedStatistics]:
    weights = toy.start(method).weights
    return [SharedStatistics.from_site(site, weights) for site in toy.engine(method).local_sites]


def test_an_image_is_found_by_its_own_window_among_ten(toy):
    found = reidentify(sharings(toy, ELCFS(alpha=0.1))[0], 10, mirror_axis=-1)
    assert found["n"] == 10
    rates = found["perturbations"]
    assert rates["noise"]["top_1"] >= 0.8 and rates["noise"]["chance"] == pytest.approx(0.1)
    assert rates["neighbour"]["chance"] == pytest.approx(1 / 9)  # of two images a patient, one does not count


def test_only_images_whose_window_was_sent_are_in_the_gallery(toy):
    found = reidentify(sharings(toy, ELCFS(alpha=0.1, bank_share=0.4))[0], 10, mirror_axis=-1)
    assert found["n"] == 4


def test_a_window_of_one_number_finds_hardly_anybody(toy):
    one_number, window = (reidentify(sharings(toy, ELCFS(alpha=alpha))[0], 10, -1) for alpha in (0.0, 0.1))
    assert one_number["perturbations"]["copy"]["top_1"] < window["perturbations"]["copy"]["top_1"]


def test_nothing_is_found_where_nothing_is_sent_of_an_image(toy):
    assert reidentify(sharings(toy, HarmoFL(half_width=2))[0], 10, -1) is None


def test_auc_of_known_scores():
    """Of 2 x 2 pairs three are in order and one is a tie: 3.5 / 4."""
    scores = torch.tensor([3.0, 2.0]), torch.tensor([2.0, 1.0])
    assert float(auc(*scores)) == 0.875
    assert float(auc(scores[1], scores[0])) == 0.125
    assert float(auc(torch.zeros(5), torch.zeros(7))) == 0.5


def test_the_interval_holds_the_auc_and_narrows_with_people():
    rng = torch.Generator().manual_seed(0)
    widths = []
    for n in (6, 60):
        members, others = torch.randn(n, generator=rng) + 0.5, torch.randn(n, generator=rng)
        low, high = bootstrap_interval(members, others, rng)
        assert low <= float(auc(members, others)) <= high
        widths.append(high - low)
    assert widths[1] < widths[0] / 2


def test_windows_of_images_tell_who_is_a_member_with_certainty(toy):
    shared = sharings(toy, ELCFS(alpha=0.1))[0]
    found = membership_inference(shared, toy.samples("north validation", 10))
    assert (found["members"], found["others"]) == (5, 5)
    assert found["same_images"] == {"auc": 1.0, "low": 1.0, "high": 1.0}
    assert membership_inference(shared, None) is None and membership_inference(shared, toy.samples("north", 2)) is None


def test_sites_of_other_brightness_are_told_and_equal_ones_are_not(toy):
    sites = sharings(toy, CCST(transfer="moments"))
    found = identify_sites(sites)
    assert found["top_1"] == 1 and found["chance"] == pytest.approx(1 / 3) and found["sites"] == 3
    assert identify_sites(sites[:1]) is None
    assert identify_sites([sites[0], sites[0]])["top_1"] <= 0.7


def test_leaving_one_out_of_five_moves_a_mean_by_what_can_be_worked_out(toy):
    """Windows are averaged: without patient p the mean moves by (mean of the others - mean of all)."""
    shared, *others = sharings(toy, HarmoFL(half_width=2))
    found = leave_one_out(shared, others)
    rows = torch.cat([shared.vectors(shared.statistics_of(shared.site.training.batch([place]))) for place in range(10)])
    without = [torch.cat([rows[: 2 * p], rows[2 * p + 2 :]]).mean(dim=0) for p in range(5)]
    changes = torch.stack([(one - rows.mean(dim=0)).norm() for one in without]) / rows.mean(dim=0).norm()
    assert found["patients"] == 5
    assert found["largest_change"] == pytest.approx(float(changes.max()), rel=1e-4)
    assert found["mean_change"] == pytest.approx(float(changes.mean()), rel=1e-4)
    assert 0 < found["of_distance"] < 1


def test_reconstruction_gives_back_what_the_full_spectrum_holds_and_not_what_the_window_leaves_out(toy):
    (found,) = reconstruct(sharings(toy, ELCFS(alpha=0.1))[0], 1, n_steps=1500)
    assert list(found.scores) == ["full", "window", "fitted", "mean"]
    assert found.scores["full"]["detail_correlation"] > 0.9
    assert abs(found.scores["window"]["detail_correlation"]) < 0.25
    assert abs(found.scores["fitted"]["detail_correlation"]) < 0.25
    assert found.scores["fitted"]["misfit"] < 0.2  # the attack does reach the statistic


def test_a_style_of_the_site_is_fitted_though_it_has_no_window(toy):
    (found,) = reconstruct(sharings(toy, CCST(transfer="moments"))[0], 1, n_steps=50)
    assert list(found.scores) == ["full", "fitted", "mean"]
    assert found.scores["fitted"]["misfit"] < 0.05
