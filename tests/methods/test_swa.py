"""SWA: averages of the global weights over rounds, by hand and in a toy federation."""

from dataclasses import replace

import pytest
import torch
from toy_runs import rounds_of, shared_run

from medfed.experiments.training import selected_state
from medfed.federation.message import State
from medfed.federation.settings import Plan
from medfed.methods.coordinate_median import CoordinateMedian
from medfed.methods.fedavg import FedAvg
from medfed.methods.stack import Stack
from medfed.methods.swa import SWA
from medfed.outputs.run_folder import RunFolder
from medfed.testing.toy import ToySegmentation


def state_of(round_number: int, value: float, rounds: int = 4, memory=None) -> State:
    weights = {"w": torch.full((2,), value), "norm.num_batches_tracked": torch.tensor(round_number)}
    return State(round_number, weights, memory or {}, plan=Plan((), rounds))


def result_of(method: SWA, values: list[float]) -> torch.Tensor:
    """The result after rounds with these global weights; the weights before round 1 are 100."""
    memory = {}
    for number, value in enumerate([100.0, *values[:-1]]):
        memory = method.remember(state_of(number, value, len(values), memory), {}, torch.Generator())
    return method.result_weights(state_of(len(values), values[-1], len(values), memory))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (SWA(start=0.0), (1 + 2 + 4 + 8) / 4),
        (SWA(start=0.5), (4 + 8) / 2),  # rounds 3 and 4
        (SWA(start=0.75), 8),
        (SWA(start=0.5, decay=0.25), 0.25 * 4 + 0.75 * 8),
        (SWA(start=0.25, decay=0.5), 0.5 * (0.5 * 2 + 0.5 * 4) + 0.5 * 8),
        (SWA(start=0.0, decay=0.0), 8),
    ],
)
def test_the_average_of_four_rounds_by_hand(method, expected):
    result = result_of(method, [1.0, 2.0, 4.0, 8.0])
    assert result["w"].tolist() == [expected] * 2 and result["w"].dtype == torch.float32
    assert int(result["norm.num_batches_tracked"]) == 4, "integers are those of the last round"


def test_averaging_starts_after_the_fraction_of_the_rounds_in_spite_of_rounding():
    assert 0.58 * 50 < 29  # in floating point
    assert SWA(start=0.58).remember(state_of(29, 1.0, 50), {}, torch.Generator()) == {}
    assert SWA(start=0.58).remember(state_of(30, 1.0, 50), {}, torch.Generator())


@pytest.mark.parametrize("method", [SWA(start=0.0), SWA(start=0.0, decay=0.9)])
def test_the_average_of_constant_weights_is_constant(method):
    assert torch.equal(result_of(method, [0.1] * 7)["w"], torch.full((2,), 0.1))


def test_training_and_messages_are_those_of_fedavg(any_toy):
    plain, averaged = (shared_run(any_toy, method).rounds[0] for method in (FedAvg(), SWA(start=0.0)))
    assert all(torch.equal(plain.state.weights[name], entry) for name, entry in averaged.state.weights.items())
    assert averaged.ledger == plain.ledger


def test_a_stack_averages_the_rounds_of_another_aggregation_and_a_checkpoint_holds_the_average():
    """Three rounds from a start of 0: the result is the mean of the weights after each of them."""
    toy, method = ToySegmentation(n_images=4), Stack((CoordinateMedian(), SWA(start=0.0)))
    states = [done.state for done in rounds_of(toy, method, 3)]
    plain = [done.state.weights for done in rounds_of(toy, CoordinateMedian(), 3)]
    assert all(
        torch.equal(state.weights[name], entry)
        for state, own in zip(states, plain, strict=True)
        for name, entry in own.items()
    )
    result = method.result_weights(State.from_bytes(states[-1].to_bytes()))
    for name, entry in result.items():
        expected = torch.stack([own[name].double() for own in plain]).mean(dim=0)
        torch.testing.assert_close(entry.double(), expected, atol=1e-6, rtol=1e-5)


def test_the_result_of_a_run_is_the_average_and_its_round_is_the_selected_one(tmp_path):
    folder, method = RunFolder(tmp_path), SWA(start=0.0)
    folder.write_text("history.csv", "round,train_loss,validation_score\n1,1.0,0.5\n2,1.0,0.4\n")
    first = state_of(1, 1.0, 2)
    folder.save_state(first)
    last = replace(state_of(2, 3.0, 2), memory=method.remember(first, {}, torch.Generator()))
    assert selected_state(folder, last, "last", method).weights["w"].tolist() == [2.0, 2.0]
    chosen = selected_state(folder, last, "source_validation", method)
    assert chosen.round == 1 and chosen.weights["w"].tolist() == [1.0, 1.0]
