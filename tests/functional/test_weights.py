import pytest
import torch
from torch import nn

from medfed.functional.weights import (
    add_prefix,
    add_scaled,
    average,
    batch_norm_entries,
    check_same_entries,
    first_non_finite,
    running_variances,
    select_prefix,
    squared_distance,
)


def test_average_by_hand():
    """Fractions 1/4 and 3/4 of 0 and 4 give 3."""
    result = average([{"w": torch.zeros(2)}, {"w": torch.full((2,), 4.0)}], torch.tensor([0.25, 0.75]))
    assert torch.equal(result["w"], torch.full((2,), 3.0))


def test_every_element_is_averaged_with_the_same_element_of_all_sites_in_any_memory_layout():
    rng = torch.Generator().manual_seed(0)
    first = torch.rand(4, 6, generator=rng, dtype=torch.float64)
    second = torch.rand(6, 4, generator=rng, dtype=torch.float64).T
    result = average([{"w": first}, {"w": second}], torch.tensor([0.25, 0.75]))["w"]
    assert torch.allclose(result, 0.25 * first + 0.75 * second, rtol=1e-12, atol=0)


def test_integer_counters_stay_integers():
    result = average([{"n": torch.tensor(3)}, {"n": torch.tensor(7)}], torch.tensor([0.5, 0.5]))
    assert result["n"].dtype == torch.int64 and result["n"] == 7


def test_sums_run_in_float64():
    """In float32, 2**24 + 1 is 2**24: the ones of 3 of 4 sites would be lost."""
    sites = [{"w": torch.tensor([2.0**24])}, *[{"w": torch.tensor([4.0])}] * 3]
    assert average(sites, torch.full((4,), 0.25, dtype=torch.float64))["w"].item() == 2**22 + 3


@pytest.mark.parametrize("shares", [[0.5, 0.6], [1.5, -0.5], [1.0]])
def test_fractions_must_be_non_negative_and_sum_to_one(shares):
    with pytest.raises(ValueError, match="fractions must be 2 numbers"):
        average([{"w": torch.zeros(1)}] * 2, torch.tensor(shares))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({}, "lacks expected entries \\(1\\), such as 'w'"),
        ({"w": torch.zeros(2), "v": torch.zeros(1)}, "unknown entries"),
        ({"w": torch.zeros(1)}, r"'w' is \(1,\)"),  # would broadcast silently
        ({"w": torch.zeros(2, dtype=torch.float64)}, "float64"),
    ],
)
def test_weights_with_missing_entries_are_rejected_by_name(other, message):
    with pytest.raises(ValueError, match=message):
        check_same_entries({"w": torch.zeros(2)}, other)


def test_a_single_nan_is_detected():
    good = {"a": torch.zeros(3), "n": torch.tensor(1)}
    assert first_non_finite(good) is None
    assert first_non_finite({**good, "b": torch.tensor([0.0, float("nan")])}) == "b"
    assert first_non_finite({**good, "c": torch.tensor([float("inf")])}) == "c"


def test_batch_norm_is_recognised_by_type_not_by_name():
    network = nn.Sequential()
    network.add_module("bn_like", nn.Conv2d(1, 1, 1))
    network.add_module("downsample", nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)))
    assert batch_norm_entries(network) == {
        f"downsample.1.{entry}" for entry in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }


def test_the_squared_distance_by_hand():
    """(3 - 1)^2 + (0 - 1)^2 + 2^2 = 9; entries of the start alone do not count; the gradient is 2 (w - w_start)."""
    entries = {"a": torch.tensor([3.0, 0.0], dtype=torch.float64, requires_grad=True), "b": torch.full((1,), 2.0)}
    start = {"a": torch.ones(2, dtype=torch.float64), "b": torch.zeros(1), "buffer": torch.full((9,), 99.0)}
    result = squared_distance(entries, start)
    assert result == 9 and torch.autograd.grad(result, entries["a"])[0].tolist() == [4.0, -2.0]


def test_scaled_changes_are_added_in_float64_and_the_start_is_not_changed():
    """2^24 + 1 * 1 + 0.5 * 2: in float32 each 1 would be lost."""
    start = torch.tensor([2.0**24])
    result = add_scaled(start, [torch.tensor([1.0]), torch.tensor([2.0])], [1.0, 0.5])
    assert result.dtype == torch.float32 and result.item() == 2**24 + 2 and start.item() == 2**24
    with pytest.raises(ValueError):
        add_scaled(start, [start], [1.0, 2.0])


def test_selecting_by_prefix_and_adding_the_prefix_are_inverse():
    entries = {"own/w": torch.ones(1), "own/own/w": torch.zeros(1), "other/w": torch.ones(2)}
    own = select_prefix(entries, "own/")
    assert set(own) == {"w", "own/w"} and own["w"] is entries["own/w"]
    assert add_prefix(own, "own/") == {name: entries[name] for name in ("own/w", "own/own/w")}


def test_running_variances_are_recognised_by_type():
    """InstanceNorm with running statistics counts, a parameter that only has such a name does not."""
    network = nn.Sequential(
        nn.BatchNorm2d(1),
        nn.InstanceNorm2d(1, track_running_stats=True),
        nn.InstanceNorm2d(1),
        nn.BatchNorm2d(1, track_running_stats=False),
    )
    network.register_parameter("running_var", nn.Parameter(torch.zeros(1)))
    assert running_variances(network) == {"0.running_var", "1.running_var"}
    assert running_variances(nn.BatchNorm1d(2)) == {"running_var"}
