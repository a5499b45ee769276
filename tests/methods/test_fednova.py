import pytest
import torch

from medfed.federation.message import Message, State, digest
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation, Plan, Training
from medfed.methods.fedavg import FedAvg
from medfed.methods.fednova import FedNova, effective_steps
from medfed.testing.toy import ToySegmentation

UPDATES = {
    "a": Message("train", {"w": torch.tensor([1.0])}, {}, {"examples": 5, "steps": 1}),
    "b": Message("train", {"w": torch.tensor([-3.0])}, {}, {"examples": 5, "steps": 3}),
}


def state(**training) -> State:
    plan = Plan(("a", "b"), 10, Training(**training))
    return State(0, {"w": torch.zeros(1)}, parameters=frozenset({"w"}), plan=plan)


def weights(toy, method):
    settings = Federation(rounds=2, validate_every=2)
    *_, last = federate(method, toy.engine(method), toy.start(method), settings, 0, toy.settings)
    return last.state


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_equal_numbers_of_steps_are_bit_identical_to_fedavg(any_toy, momentum):
    any_toy.settings = Training(batch_size=4, optimizer="sgd", momentum=momentum, optimizer_state="reset")
    actual, plain = (weights(any_toy, m) for m in (FedNova(), FedAvg()))
    assert digest(actual.to_bytes()) == digest(plain.to_bytes())


def test_a_site_with_more_steps_does_not_have_more_influence():
    """Both change by 1 per step in opposite directions, the second for three steps: the sum is 0, but not in FedAvg."""
    assert FedNova().aggregate(state(), UPDATES)["w"].abs() < 1e-12
    assert FedAvg().aggregate(state(), UPDATES)["w"] == -1


def test_momentum_counts_only_for_sgd_with_reset_state():
    """With m = 0.5, one step has length 1 and three have 1 + 1.5 + 1.75 = 4.25: L = 2.625; 2.625 / 2 (1 - 3 / 4.25)."""
    moved = 2.625 / 2 * (1 - 3 / 4.25)
    from_rest = {"optimizer": "sgd", "momentum": 0.5, "optimizer_state": "reset"}
    assert FedNova().aggregate(state(**from_rest), UPDATES)["w"].item() == pytest.approx(moved)
    for other in ({"optimizer": "adam"}, {"optimizer_state": "keep"}, {"momentum": 0.0}):
        assert FedNova().aggregate(state(**(from_rest | other)), UPDATES)["w"].abs() < 1e-12


def test_a_run_passes_the_training_settings():
    toy = ToySegmentation(training=Training(batch_size=4, optimizer="sgd", momentum=0.9, optimizer_state="reset"))
    engine = toy.engine(FedNova())
    done = next(federate(FedNova(), engine, toy.start(FedNova()), Federation(rounds=1), 0, toy.settings))
    assert done.state.plan == Plan(("north", "south", "west"), 1, toy.settings)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_length_equals_the_distance_of_sgd_with_equal_gradients(momentum):
    """PyTorch's SGD with a gradient of -1 and a learning rate of 1."""
    weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], 1.0, momentum)
    for steps in range(1, 8):
        weight.grad = -torch.ones_like(weight)
        optimizer.step()
        assert effective_steps(steps, momentum) == pytest.approx(weight.item())
