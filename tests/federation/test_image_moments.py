"""`data.standardise: dataset`: the constants of all source sites, from the first message to the exported model."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from medfed.core.errors import UserError
from medfed.deployment.agreement import Agreement, Refused
from medfed.deployment.dry_run import dry_run
from medfed.deployment.guard import Guard
from medfed.deployment.guarded_site import GuardedSite
from medfed.deployment.hospital_state import SentReply
from medfed.deployment.monai_client import MedfedClient
from medfed.federation.image_moments import MOMENTS, constants_of, moments_request, pool
from medfed.federation.message import Message, digest
from medfed.federation.privacy import Privacy
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.functional.standardisation import INPUT_MEAN, INPUT_STD
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.networks.parts.input_scale import prepend_input_scale
from medfed.testing.toy import ToySegmentation


class Scaled(ToySegmentation):
    """The toy federation whose network standardises its input by the constants of all sites."""

    def __init__(self) -> None:
        super().__init__(n_images=6)
        self.task = replace(self.task, standardised="dataset")

    def network(self, method, seed=0):
        network = super().network(method, seed)
        prepend_input_scale(network, self.task.channels)
        return network


def rounds_of(toy, method, n=2, engine=None, state=None, privacy=None):
    engine = engine or toy.engine(method, sites=("north", "south"))
    for site in engine.local_sites if privacy else ():
        site.privacy = privacy
    return list(federate(method, engine, state or toy.start(method), Federation(rounds=n), 0))


def test_constants_are_those_of_all_pixels_of_all_training_images_and_stay_the_same_also_after_resuming():
    toy, method = Scaled(), FedAvg()
    engine = toy.engine(method, sites=("north", "south"))
    pixels = np.concatenate([site.training.images.double().numpy().ravel() for site in engine.local_sites])
    whole = rounds_of(toy, method, engine=engine)
    for done in whole:
        assert float(done.state.weights[INPUT_MEAN]) == pytest.approx(pixels.mean(), rel=1e-6)
        assert float(done.state.weights[INPUT_STD]) == pytest.approx(pixels.std(), rel=1e-6)
    engine = toy.engine(method, sites=("north", "south"))
    (first,) = rounds_of(toy, method, 1, engine)
    resumed = rounds_of(toy, method, 2, engine, first.state)
    assert digest(resumed[-1].state.to_bytes()) == digest(whole[-1].state.to_bytes())


def test_sites_of_different_size_are_pooled_by_their_pixels_in_any_order():
    """Pixels 0, 0, 1 at one site and 1 at the other: mean 1/2, variance 1/4."""

    def reply(mean, variance, pixels):
        moments = torch.tensor([[mean], [variance]], dtype=torch.float64)
        return Message("share", tensors={MOMENTS: moments}, facts={"pixels": pixels})

    a, b = reply(1 / 3, 2 / 9, 3), reply(1.0, 0.0, 1)
    constants = pool({"a": a, "b": b})
    assert constants[INPUT_MEAN].tolist() == [0.5] and constants[INPUT_STD].tolist() == [0.5]
    assert all(torch.equal(entry, constants[name]) for name, entry in pool({"b": b, "a": a}).items())
    assert pool({"a": reply(0.5, -0.1, 4)})[INPUT_STD].tolist() == [1.0]  # noise made the variance negative


def test_the_network_trains_on_images_that_are_standardised_by_the_constants():
    """The result is the same as with the task's own constants and a network without the layer."""
    toy, method = Scaled(), FedAvg()
    last = rounds_of(toy, method)[-1].state.weights
    plain = ToySegmentation(n_images=6)
    constants = tuple((float(entry),) for entry in constants_of(last).values())
    plain.task = replace(plain.task, standardised="dataset", constants=constants)
    expected = rounds_of(plain, method)[-1].state.weights
    assert all(torch.allclose(last[name], entry, atol=1e-6) for name, entry in expected.items())


def test_the_moments_are_in_the_ledger_once_and_the_dry_run_shows_them():
    toy, method = Scaled(), ELCFS(alpha=0.1, min_patients=1)
    engine = toy.engine(method, sites=("north", "south"))
    rows = [row for done in rounds_of(toy, method, engine=engine) for row in done.ledger if row["kind"] == "share"]
    up = [(row["site"], row["name"], row["round"]) for row in rows if row["direction"] == "up"]
    sites = sorted(site.name for site in engine.local_sites)
    assert up == [(site, name, 1) for names in ([MOMENTS, "pixels"], ["windows"]) for site in sites for name in names]
    site = toy.engine(method).local_sites[0]
    shown = dry_run(site, toy.start(method), 0)
    assert [name for reply, _ in shown if reply.kind == "share" for name in reply.tensors] == [MOMENTS, "windows"]
    guard = Guard(Agreement(), site, [SentReply(1, MOMENTS, "", 9, None, 0.0)])
    assert guard.planned_releases(shown)["statistics_noise", 0.0] == 2, "the moments have left, the windows have not"
    with pytest.raises(UserError, match="agrees.sends: .* 'image_moments', which are not in the list"):
        Guard(Agreement(sends=("windows",)), site).check_plan(shown, "HK.yaml")


def test_a_site_with_too_few_patients_shares_no_moments_and_trains_with_the_constants_of_the_others():
    """Three patients at each site, of which one site asks for four: the constants are those of the other site."""
    toy, method = Scaled(), FedAvg()
    engine = toy.engine(method, sites=("north", "south"))
    few, other = engine.local_sites
    few.min_patients = 4
    with pytest.warns(UserWarning, match=f"{few.name}: has 3 .* data.min_patients .4., .* shares no image moments; "):
        rounds = rounds_of(toy, method, engine=engine)
    pixels = other.training.images.double().numpy()
    assert float(rounds[-1].state.weights[INPUT_MEAN]) == pytest.approx(pixels.mean(), rel=1e-6)
    rows = [row for done in rounds for row in done.ledger if row["direction"] == "up"]
    assert {row["site"] for row in rows if row["name"] == MOMENTS} == {other.name}
    assert {row["site"] for row in rows if row["kind"] == "train"} == {few.name, other.name}
    other.min_patients = 4
    with pytest.warns(UserWarning, match="no site shared the moments of its images.* decrease data.min_patients"):
        last = rounds_of(toy, method, engine=engine)[-1].state.weights
    assert last[INPUT_MEAN].tolist() == [0.0] and last[INPUT_STD].tolist() == [1.0]


def test_privacy_clips_the_moments_and_no_noise_of_an_update_changes_the_constants():
    """The moments are clipped to a norm of 0.01, so the mean and the variance are smaller than that."""
    toy, method = Scaled(), FedAvg()
    privacy = Privacy(clip=1.0, noise=0.1, statistics_clip=0.01)
    first, second = rounds_of(toy, method, privacy=privacy)
    assert 0 < float(first.state.weights[INPUT_MEAN]) < 0.01 and 0 < float(first.state.weights[INPUT_STD]) <= 0.1
    for name, entry in constants_of(first.state.weights).items():
        assert torch.equal(second.state.weights[name], entry)


def test_a_hospital_shares_its_moments_only_before_round_1_and_only_if_the_plan_needs_them(tmp_path):
    def guarded(toy):
        (site,) = toy.engine(FedAvg(), sites=("north",)).local_sites
        (folder := tmp_path / type(toy).__name__).mkdir(exist_ok=True)
        return GuardedSite(site, folder, Agreement(sends=(MOMENTS,), rounds=3))

    assert set(guarded(Scaled()).reply(moments_request()).tensors) == {MOMENTS}
    late = replace(moments_request(), facts={"round": 2, "moments": 1})
    for toy, request in ((Scaled(), late), (ToySegmentation(), moments_request())):
        number = request.facts["round"]
        with pytest.raises(
            Refused, match=f"asked for the moments of its images in round {number}, but the agreed plan"
        ):
            guarded(toy).reply(request)
    with pytest.raises(Refused, match="unknown value 'moments'"):
        guarded(Scaled()).reply(replace(moments_request(), kind="validate"))


def test_another_host_than_the_coordinator_is_told_to_choose_another_word():
    (site,) = Scaled().engine(FedAvg(), sites=("north",)).local_sites
    with pytest.raises(UserError, match="data.standardise: dataset needs medfed's coordinator"):
        MedfedClient(site)
