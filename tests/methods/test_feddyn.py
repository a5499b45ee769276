"""FedDyn on a quadratic problem of two sites, computed by hand."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from toy_runs import rounds_of, shared_run

from medfed.core.batch import Batch
from medfed.core.seeds import stream
from medfed.engines.in_process import InProcess
from medfed.federation.message import State, digest
from medfed.federation.rounds import choose_sites, federate
from medfed.federation.settings import Federation, Training
from medfed.federation.site import Site
from medfed.functional.weights import trainable_parameters
from medfed.methods.fedavg import FedAvg
from medfed.methods.feddyn import FedDyn
from medfed.testing.toy import ToyClassification, ToySegmentation

EXACT = {"rtol": 0, "atol": 1e-12}


class UniformFedAvg(FedAvg):
    site_weights = "uniform"


class Scalar(nn.Module):
    """A network whose output is its only trained parameter, with a frozen parameter and a buffer of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.full((1,), 7.0, dtype=torch.float64), requires_grad=False)
        self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))

    def forward(self, image):
        self.seen.fill_(image.mean())
        return self.theta.expand(len(image), 1)


@dataclass(frozen=True)
class Quadratic:
    """One sample with the loss curvature / 2 * (theta - centre)^2. It serves as a site's samples and task."""

    curvature: float
    centre: float
    n_patients: int = 1

    def __len__(self):
        return 1

    def batch(self, indices):
        return Batch(torch.full((1, 1, 1, 1), self.centre, dtype=torch.float64), torch.zeros(1))

    def standardise(self, image, moments=None):
        return image

    def loss(self, logits, label):
        return self.curvature / 2 * (logits - self.centre).square().sum()


NORTH, SOUTH = Quadratic(2.0, 1.0), Quadratic(6.0, 5.0)  # the mean loss has its minimum at (2 * 1 + 6 * 5) / 8 = 4


def quadratic_sites(method, n_steps: int = 30) -> InProcess:
    """Sites that minimise exactly: each step of SGD leaves 1/3 of the distance (alpha = 2: 1 - 4/6, 1 - 8/6)."""
    settings = Training("sgd", learning_rate=1 / 6, batch_size=1, augment=False, optimizer_state="reset")
    architecture = ToySegmentation.architecture

    def site(name: str, problem: Quadratic) -> Site:
        return Site(
            name, problem, None, problem, method, Scalar(), architecture, settings, frozenset(), n_steps, seed=0
        )

    return InProcess([site("north", NORTH), site("south", SOUTH)])


def test_three_rounds_with_south_absent_in_the_second_equal_those_computed_by_hand():
    """theta_k = (curvature centre + g_k + alpha theta) / (curvature + alpha), with alpha = 2, m = 2 and theta^0 = 0.

    1. theta_N = (2 + 0 + 0) / 4 = 0.5            theta_S = (30 + 0 + 0) / 8 = 3.75
       g_N = 0 - 2 * 0.5 = -1                     g_S = 0 - 2 * 3.75 = -7.5
       h = 0 - 2/2 * (0.5 + 3.75) = -4.25         theta = 2.125 + 4.25 / 2 = 4.25
    2. theta_N = (2 - 1 + 8.5) / 4 = 2.375        (south is absent)
       g_N = -1 - 2 * (2.375 - 4.25) = 2.75       g_S = -7.5
       h = -4.25 - 2/2 * (-1.875) = -2.375        theta = 2.375 + 2.375 / 2 = 3.5625
    3. theta_N = (2 + 2.75 + 7.125) / 4 = 2.96875     theta_S = (30 - 7.5 + 7.125) / 8 = 3.703125
       g_N = 2.75 + 2 * 0.59375 = 3.9375              g_S = -7.5 - 2 * 0.140625 = -7.78125
       h = -2.375 - 2/2 * (-0.453125) = -1.921875     theta = 3.3359375 + 1.921875 / 2 = 4.296875
    """
    seed = next(s for s in range(99) if choose_sites(["north", "south"], 1, stream(s, "clients", 2)) == ["north"])
    method = FedDyn(alpha=2.0)
    engine, state, actual = quadratic_sites(method), State.of(Scalar()), []
    for settings in (Federation(rounds=1), Federation(rounds=2, clients_per_round=1), Federation(rounds=3)):
        (done,) = federate(method, engine, state, settings, seed)
        state = done.state
        g = [site.memory["gradient/theta"] for site in engine.local_sites]
        actual.append(torch.cat([*g, state.memory["h/theta"], state.weights["theta"], state.weights["seen"]]))
        assert state.took_part == {"north": state.round, "south": 1 if state.round == 2 else state.round}
        assert state.weights["frozen"] == 7 and state.memory["h/frozen"] == 0
    expected = [  # g_N, g_S, h, theta, and the buffer: the average over the participating sites, without h
        [-1.0, -7.5, -4.25, 4.25, 3.0],
        [2.75, -7.5, -2.375, 3.5625, 1.0],
        [3.9375, -7.78125, -1.921875, 4.296875, 3.0],
    ]
    torch.testing.assert_close(torch.stack(actual), torch.tensor(expected, dtype=torch.float64), **EXACT)
    assert set(engine.local_sites[0].memory) == {"gradient/theta"}, "neither frozen parameters nor buffers have a g"


def test_it_converges_to_the_minimum_of_the_mean_loss_and_fedavg_does_not():
    """At 4 the sites' gradients are 2 (4 - 1) = 6 and 6 (4 - 5) = -6: these are g_N and g_S, and h is 0.

    Each round halves the distance to 4.
    FedAvg with exact local minima is at their mean, (1 + 5) / 2 = 3, after any round.
    """
    method = FedDyn(alpha=2.0)
    engine = quadratic_sites(method, 12)
    *_, last = federate(method, engine, State.of(Scalar()), Federation(rounds=26), 0)
    g = [float(site.memory["gradient/theta"]) for site in engine.local_sites]
    assert [*g, float(last.state.memory["h/theta"])] == pytest.approx([6, -6, 0], abs=1e-6)
    assert float(last.state.weights["theta"]) == pytest.approx(4, abs=1e-6)
    settings = Federation(rounds=2, largest_change=None)  # exact minima are the same in both rounds, as a copy would be
    *_, plain = federate(UniformFedAvg(), quadratic_sites(UniformFedAvg()), State.of(Scalar()), settings, 0)
    assert float(plain.state.weights["theta"]) == pytest.approx(3, abs=1e-2)


def test_alpha_zero_is_bit_identical_to_the_uniform_average(any_toy):
    states, any_toy.settings = [], Training(batch_size=6)  # one step per round
    for method in (FedDyn(alpha=0.0), UniformFedAvg(), FedDyn()):
        engine = any_toy.engine(method)
        engine.local_sites[0].training = any_toy.samples("north", 4)  # unequal sites: FedAvg would use other weights
        *_, last = rounds_of(any_toy, method, 2, engine)
        states.append(digest(last.state.to_bytes()))
    assert states[0] == states[1] != states[2]


def test_batch_norm_statistics_are_averaged():
    """In round 1 g_k is 0, so a tiny alpha trains as FedAvg does; only the parameters get the correction h / alpha."""
    toy = ToyClassification(n_images=4)
    first = {}
    for method in (FedDyn(alpha=1e-6), UniformFedAvg()):
        first[type(method)] = shared_run(toy, method).rounds[0].state
    actual, plain = first[FedDyn].weights, first[UniformFedAvg].weights
    start, buffers = toy.start(FedDyn()).weights, actual.keys() - first[FedDyn].parameters
    assert any("running_var" in name for name in buffers)
    for name, entry in actual.items():
        expected = plain[name] if name in buffers else 2 * plain[name] - start[name]  # the docstring's theta^1
        torch.testing.assert_close(entry, expected, rtol=1e-3, atol=1e-4)


def test_batch_norm_that_stays_at_the_sites_has_neither_g_nor_h():
    toy, method = ToyClassification(n_images=4), FedDyn()
    engine = toy.engine(method, local_batch_norm=True)
    *_, last = rounds_of(toy, method, 2, engine)
    site = engine.local_sites[0]
    shared = set(trainable_parameters(site.network)) - site.local_keys
    assert site.local_keys and set(last.state.memory) == {"h/" + name for name in shared}
    assert {name for name in site.memory if name.startswith("gradient/")} == {"gradient/" + name for name in shared}
