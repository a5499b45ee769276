import pytest
import torch
from toy_runs import batch_of, local_round, rounds_of, shared_run

from medfed.config.schema import load
from medfed.core.errors import UserError
from medfed.experiments.method_figures import restyled
from medfed.experiments.setup import build_experiment
from medfed.federation.message import State, digest
from medfed.federation.settings import Training
from medfed.functional.fourier import low_frequency_window, unpack_window
from medfed.methods.fedavg import FedAvg
from medfed.methods.harmofl import HarmoFL
from medfed.methods.stack import Stack
from medfed.networks.parts.amplitude_normaliser import alpha_for_half_width
from medfed.tasks.classification import Classification
from medfed.tasks.segmentation import Segmentation

ENTRY = "amplitude.window"
FEW = {"min_patients": 1}


@pytest.fixture
def raw_toy(any_toy):
    """A toy federation whose network receives images in [0, 1] without standardising."""
    if any_toy.architecture.decoder_levels:
        any_toy.task = Segmentation(("disc",), 1, 32, (0.0, 1.0), standardised="none")
    else:
        any_toy.task = Classification(("small", "large"), 3, 32, standardised="none")
    return any_toy


def test_the_gradient_is_taken_at_the_perturbed_weights_and_the_weights_are_unchanged(raw_toy):
    """Computed by hand: add delta to the weights in place and take the gradient there."""
    method, batch = HarmoFL(normalise=False, perturbation=0.05), batch_of(raw_toy)
    local = local_round(raw_toy, method)
    before = {name: p.detach().clone() for name, p in local.network.named_parameters()}
    method.loss(local, batch)[0].backward()
    actual = {name: p.grad for name, p in local.network.named_parameters()}
    assert all(torch.equal(p, before[name]) for name, p in local.network.named_parameters())
    by_hand = local_round(raw_toy, method).network
    names, weights = zip(*by_hand.named_parameters())

    def gradients():
        return torch.autograd.grad(raw_toy.task.loss(by_hand(batch.image), batch.label), weights)

    g = gradients()
    length = torch.cat([one.flatten() for one in g]).norm()
    with torch.no_grad():
        for weight, one in zip(weights, g, strict=True):
            weight += 0.05 * one / length
    moved = torch.cat([(w - before[n]).flatten() for n, w in zip(names, weights)])
    assert float(moved.detach().norm()) == pytest.approx(0.05, rel=1e-3)
    for name, there in zip(names, gradients(), strict=True):
        assert torch.allclose(actual[name], there, atol=1e-5), name
    assert not all(torch.allclose(actual[name], here, atol=1e-5) for name, here in zip(names, g))


def test_the_window_is_the_mean_over_sites_of_the_mean_over_images_in_all_rounds(raw_toy):
    done = shared_run(raw_toy, HarmoFL(**FEW), 3).rounds
    alpha = alpha_for_half_width(3, 32)
    n = raw_toy.n_images
    of_sites = [
        low_frequency_window(raw_toy.samples(site, n).batch(range(n)).image, alpha).double().mean(dim=0)
        for site in ("north", "south", "west")
    ]
    expected = torch.stack(of_sites).mean(dim=0).float()
    windows = [one.state.weights[ENTRY] for one in done]
    assert torch.allclose(windows[0], expected, atol=1e-7) and expected.min() > 0
    assert torch.equal(windows[0], windows[1]) and torch.equal(windows[0], windows[2])
    assert torch.equal(windows[0], unpack_window(done[0].state.memory["amplitude"]))


def test_the_amplitudes_are_sent_once_as_25_numbers_per_channel(raw_toy):
    done = shared_run(raw_toy, HarmoFL(**FEW), 3).rounds
    crossed = [[row for row in one.ledger if row["name"] == "amplitude"] for one in done]
    assert [(row["direction"], row["bytes"]) for row in crossed[0]].count(("up", 100 * raw_toy.task.channels)) == 3
    assert [(row["direction"], row["bytes"]) for row in crossed[0]].count(("down", 100 * raw_toy.task.channels)) == 3
    assert not crossed[1] and not crossed[2]


def test_a_site_that_joins_later_receives_the_window_with_the_weights(raw_toy):
    raw_toy.settings = Training(batch_size=6)
    done = rounds_of(raw_toy, HarmoFL(**FEW), 4, clients_per_round=1)
    assert len(done[-1].state.took_part) > 1, "several sites have trained"
    assert len({digest(State(0, {ENTRY: one.state.weights[ENTRY]}).to_bytes()) for one in done}) == 1


def test_images_of_an_unseen_site_are_normalised(raw_toy):
    method = HarmoFL(**FEW)
    state = shared_run(raw_toy, method, 3).rounds[0].state
    weights = state.weights
    network = raw_toy.network(method)
    network.load_state_dict(weights)
    plain = raw_toy.network(FedAvg())
    plain.load_state_dict({name: weights[name] for name in plain.state_dict()})
    image = raw_toy.samples("east").batch(range(3)).image
    seen = restyled(method, State(1, {}, state.memory), image)["all sites"]
    assert torch.allclose(network.eval()(image), plain.eval()(seen), atol=1e-6)
    assert not torch.allclose(seen, image, atol=0.05)


def test_if_no_site_shares_its_amplitudes_images_stay_unchanged(raw_toy):
    with pytest.warns(UserWarning, match="images stay as they are"):
        assert not rounds_of(raw_toy, HarmoFL(min_patients=99))[0].state.weights[ENTRY].any()


def test_standardised_images_are_rejected_before_anything_is_read(tiny_config, monkeypatch):
    monkeypatch.setattr("medfed.experiments.setup.read_sites", None)  # reading would be a TypeError
    with pytest.raises(UserError, match="data.standardise: expected none, .*set data.standardise to none"):
        build_experiment(load(tiny_config, ["method.name=harmofl", "data.standardise=slice"]), None, True)
    for method in (HarmoFL(), Stack((FedAvg(), HarmoFL()))):
        method.check(64, 3, False)
        with pytest.raises(UserError, match="data.standardise"):
            method.check(64, 3, True)
    HarmoFL(normalise=False).check(64, 3, True)


def test_a_window_larger_than_the_image_is_rejected():
    with pytest.raises(UserError, match="method.half_width: 20 .*data.image_size is 32; choose at most 15"):
        HarmoFL(half_width=20).check(32, 1, False)
    HarmoFL(half_width=15).check(32, 1, False)
