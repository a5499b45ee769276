import pytest
import torch

from medfed.federation.message import Message, State, digest
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.methods.fedavg import FedAvg
from medfed.methods.fednova import FedNova


def weights(toy, method, unequal=False):
    engine = toy.engine(method)
    if unequal:
        engine.members[0].training = toy.samples("north", 4)
    *_, last = federate(method, engine, toy.start(method), Federation(rounds=2), 0)
    return last.state


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_equal_numbers_of_steps_are_fedavg_to_the_bit(any_toy, momentum):
    found, plain = (weights(any_toy, m) for m in (FedNova(momentum), FedAvg()))
    assert digest(found.to_bytes()) == digest(plain.to_bytes())


def test_unequal_numbers_of_steps_are_not(any_toy):
    found, plain = (weights(any_toy, m, unequal=True) for m in (FedNova(), FedAvg()))
    assert digest(found.to_bytes()) != digest(plain.to_bytes())


def test_a_site_that_takes_more_steps_does_not_pull_further():
    """Both pull by 1 a step, in opposite directions, the second for three steps: nothing is left, and FedAvg moves."""
    updates = {"a": Message("train", {"w": torch.tensor([1.0])}, {}, {"examples": 5, "steps": 1}),
               "b": Message("train", {"w": torch.tensor([-3.0])}, {}, {"examples": 5, "steps": 3})}  # fmt: skip
    state = State(0, {"w": torch.zeros(1)})
    assert FedNova().aggregate(state, updates)["w"].abs() < 1e-12 and FedAvg().aggregate(state, updates)["w"] == -1


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_length_is_how_far_sgd_goes_with_equal_gradients(momentum):
    """A gradient of -1 and a learning rate of 1, by PyTorch's own SGD."""
    weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], 1.0, momentum)
    for steps in range(1, 8):
        weight.grad = -torch.ones_like(weight)
        optimizer.step()
        assert FedNova(momentum).length(steps) == pytest.approx(weight.item())


def test_an_impossible_momentum_is_refused():
    with pytest.raises(ValueError, match="momentum"):
        FedNova(1.0)
