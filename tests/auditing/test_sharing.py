"""Tests that the audited statistics are those that the coordinator would receive."""

from dataclasses import replace

import pytest
import torch

from medfed.auditing.perturbations import degraded_copy, jpeg_compressed, perturbations, random_shift
from medfed.auditing.reconstruction import WINDOWS, reconstruct_from_window
from medfed.auditing.sharing import (
    ForceGradients,
    SharedStatistics,
    evenly_spaced,
    images_by_patient,
    standardised_distances,
)
from medfed.core.batch import Batch
from medfed.federation.image_moments import moments_request
from medfed.federation.message import Message
from medfed.functional.fourier import low_frequency_window
from medfed.methods.ccst import CCST
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.methods.fisc import FISC
from medfed.methods.harmofl import HarmoFL
from medfed.methods.stable_fdg import StableFDG
from medfed.networks.parts.input_scale import prepend_input_scale

METHODS = {
    "elcfs": ELCFS(alpha=0.1),
    "ccst": CCST(transfer="moments"),
    "single": CCST(transfer="moments", style="single", images_per_style=2),
    "codec": CCST(),
    "fisc": FISC(transfer="moments"),
    "stable_fdg": StableFDG(attention=False),
    "harmofl": HarmoFL(half_width=2),
}
GROWS = {"elcfs": {"windows"}, "single": {"mean", "std"}}


def shared_of(toy, method) -> SharedStatistics:
    site = toy.engine(method).local_sites[0]
    return SharedStatistics.from_site(site, toy.start(method).weights)


@pytest.mark.parametrize("name", METHODS)
def test_the_audited_statistics_are_those_that_the_coordinator_receives(toy, name):
    shared = shared_of(toy, METHODS[name])
    site = toy.engine(METHODS[name]).local_sites[0]
    reply = site.reply(Message("share", toy.start(METHODS[name]).weights, {}, {"round": 1}))
    assert shared.sent.keys() == reply.tensors.keys()
    assert all(torch.equal(shared.sent[entry], reply.tensors[entry]) for entry in shared.sent)
    assert shared.n_bytes == len(reply.to_bytes())
    assert shared.per_image_entries == GROWS.get(name, set())
    assert sum(entry["bytes"] for entry in shared.entries()) < shared.n_bytes


def test_vectors_describe_images_or_the_whole_site_depending_on_the_method(toy):
    assert shared_of(toy, METHODS["elcfs"]).vectors(shared_of(toy, METHODS["elcfs"]).sent).shape == (10, 25)
    harmofl = shared_of(toy, METHODS["harmofl"])
    assert harmofl.vectors(harmofl.sent).shape == (1, 13)
    fisc = shared_of(toy, METHODS["fisc"])
    assert fisc.vectors(fisc.sent).shape == (1, 2)  # not the number of clusters, which is no real number
    nothing = shared_of(toy, FedAvg())
    assert nothing.sent == {} and nothing.vectors(nothing.sent).shape == (0, 0)


def test_min_patients_does_not_suppress_the_statistics_of_a_single_image(toy):
    shared = shared_of(toy, ELCFS(alpha=0.1, min_patients=5))
    assert len(shared.vectors(shared.statistics_of(shared.site.training.batch([3])))) == 1
    silent = shared_of(toy, ELCFS(alpha=0.1, min_patients=6))
    assert silent.sent == {} and len(silent.vectors(silent.sent)) == 0


def test_the_moments_of_images_are_audited_beside_what_the_method_shares(toy):
    """With `data.standardise: dataset`, a site of FedAvg sends the mean and the variance of its pixels."""
    for method in (FedAvg(), METHODS["fisc"]):
        site = toy.engine(method).local_sites[0]
        prepend_input_scale(site.network, toy.task.channels)
        shared = SharedStatistics.from_site(site, site.network.state_dict())
        own = site.reply(moments_request())
        assert torch.equal(shared.sent["image_moments"], own.tensors["image_moments"])
        of_method = {"style/mean", "style/std", "n_clusters"} if method == METHODS["fisc"] else set()
        assert shared.sent.keys() == {"image_moments"} | of_method
        assert [entry["name"] for entry in shared.entries()] == sorted(shared.sent)
        assert shared.n_bytes >= len(own.to_bytes())
        assert shared.vectors(shared.sent).shape == ((1, 4) if of_method else (1, 2))
        pixels = site.training.batch([3]).image
        of_one = shared.statistics_of(site.training.batch([3]))["image_moments"]
        torch.testing.assert_close(of_one[:, 0], torch.stack([pixels.mean(), pixels.var(correction=0)]).double())


@pytest.mark.parametrize("name", METHODS)
def test_the_methods_own_share_can_be_differentiated_and_gives_the_same_numbers(toy, name):
    """Compare the gradient of the sum of the statistics with a difference quotient."""
    shared = shared_of(toy, METHODS[name])
    shared.site.network.requires_grad_(False)
    batch = shared.site.training.batch([2])
    image = batch.image.clone().requires_grad_()
    with ForceGradients():
        rows = shared.vectors(shared.statistics_of(Batch(image, batch.label)))
        (gradient,) = torch.autograd.grad(rows.sum(), [image])
    torch.testing.assert_close(rows.detach(), shared.vectors(shared.statistics_of(batch)), rtol=1e-6, atol=1e-7)
    direction = gradient * 2e-3 / gradient.abs().max()  # the steepest, so that rounding does not hide it
    ends = [
        float(shared.vectors(shared.statistics_of(Batch(batch.image + sign * direction, batch.label))).sum())
        for sign in (-1, 1)
    ]
    assert (ends[1] - ends[0]) / 2 == pytest.approx(float((gradient * direction).sum()), rel=0.05)


def test_the_shared_window_is_placed_at_its_frequencies(toy):
    """The reconstructed image has the shared amplitudes, with the zero frequency in the centre."""
    image = toy.samples("north").batch([0]).image.double()
    window = low_frequency_window(image, 0.1)
    actual = reconstruct_from_window(window[0, 0], (32, 32), torch.Generator().manual_seed(0), 300)
    assert actual.residual < 1e-3
    torch.testing.assert_close(low_frequency_window(actual.image[None, None], 0.1), window, rtol=0, atol=2e-4)
    assert set(WINDOWS) == {"windows", "amplitude"}


def test_images_are_grouped_by_patient(toy):
    samples = toy.samples("north", 6)
    assert images_by_patient(samples) == [[0, 1], [2, 3], [4, 5]]
    two_visits = replace(samples, patient_of_volume=torch.tensor([0, 1, 0]))
    assert images_by_patient(two_visits) == [[0, 1, 4, 5], [2, 3]]
    assert evenly_spaced(range(10), 2) == [2, 7] and evenly_spaced([1, 2], 5) == [1, 2]


def test_the_distance_weights_all_entries_equally_and_ignores_constant_ones():
    rows = torch.tensor([[1e6, -1e-6, 3.0], [2e6, 1e-6, 3.0]], dtype=torch.float64)
    distances = standardised_distances(rows[:1], rows[1:], rows)  # of two numbers, each sqrt(2) standard deviations
    torch.testing.assert_close(distances, torch.full((1, 1), 2.0, dtype=torch.float64))


def test_perturbations_keep_the_shape_and_the_range(toy):
    rng = torch.Generator().manual_seed(0)
    for channels in (1, 3):
        image = toy.samples("north").batch([0]).image[0].expand(channels, -1, -1)
        for look in perturbations(-1).values():
            seen = look(image, rng)
            assert seen.shape == image.shape and 0 <= float(seen.min()) <= float(seen.max()) <= 1
            assert not torch.equal(seen, image)
    assert float((jpeg_compressed(image) - image).abs().mean()) < 0.05
    assert float((degraded_copy(image, rng) - image).abs().mean()) < 0.1
    ramp = torch.arange(64.0)[None, None, :].expand(1, 64, 64) / 64
    moved = [random_shift(ramp, torch.Generator().manual_seed(seed)) - ramp for seed in range(8)]
    assert {round(float(change[0, 32, 32]) * 64) for change in moved} == {-2, 2}, "a shift by two pixels"
