from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

from medfed.functional.weights import change_norm, trimmed_mean
from medfed.methods.norm_clipping import clipped_average

PARAMETERS = {"conv.weight", "w", "a", "b"}


def median(weights):
    return trimmed_mean(weights, (len(weights) - 1) // 2)


def learned(weights):
    return {name: entry for name, entry in weights.items() if name in PARAMETERS}


def sites(n: int, dtype=torch.float64) -> list[dict[str, torch.Tensor]]:
    rng = torch.Generator().manual_seed(n)
    return [
        {
            "conv.weight": torch.randn(3, 2, generator=rng, dtype=dtype),
            "norm.running_var": torch.rand(3, generator=rng, dtype=dtype),
            "norm.num_batches_tracked": torch.tensor(10 + i),
        }
        for i in range(n)
    ]


def floats(weights):
    return {name: entry for name, entry in weights.items() if entry.is_floating_point()}


def stacked(weights, name):
    return np.stack([one[name].numpy() for one in weights])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_the_median_is_numpys(n):
    result = median(sites(n))
    for name in floats(result):
        np.testing.assert_allclose(result[name].numpy(), np.median(stacked(sites(n), name), axis=0), rtol=1e-15)


@pytest.mark.parametrize(("n", "cut"), [(3, 1), (5, 1), (5, 2), (8, 3), (4, 0)])
def test_the_trimmed_mean_is_scipys(n, cut):
    result = trimmed_mean(sites(n), cut)
    for name in floats(result):
        expected = trim_mean(stacked(sites(n), name), (cut + 0.5) / n, axis=0)
        np.testing.assert_allclose(result[name].numpy(), expected, rtol=1e-14)


def test_by_hand():
    """Of 1, 2, 4, 100: the median is 3, the mean without the extremes is 3; of 1, 2, 100 it is 2."""
    weights = [{"w": torch.tensor([value])} for value in (4.0, 100.0, 1.0, 2.0)]
    assert median(weights)["w"] == 3 == trimmed_mean(weights, 1)["w"]
    assert median(weights[1:])["w"] == 2 == trimmed_mean(weights[1:], 1)["w"]


def test_counters_are_the_largest_and_dtypes_stay():
    for dtype in (torch.float32, torch.float16):
        for result in (
            median(sites(3, dtype)),
            trimmed_mean(sites(3, dtype), 1),
            clipped_average(sites(3, dtype)[0], sites(3, dtype), torch.full((3,), 1 / 3), PARAMETERS, 0.1),
        ):
            assert result["norm.num_batches_tracked"] == 12
            assert result["norm.num_batches_tracked"].dtype == torch.int64
            assert {entry.dtype for entry in floats(result).values()} == {dtype}


@pytest.mark.parametrize("cut", [-1, 2])
def test_a_cut_that_removes_all_values_is_rejected(cut):
    with pytest.raises(ValueError, match=f"cut must be at least 0 and below half of 4 state dicts, got {cut}"):
        trimmed_mean(sites(4), cut)


def test_state_dicts_with_other_entries_are_rejected():
    ends = sites(3)
    del ends[1]["conv.weight"]
    shares = torch.ones(3) / 3
    clipped = partial(clipped_average, ends[0], fractions=shares, parameters=PARAMETERS)
    for make in (median, partial(trimmed_mean, cut=1), clipped):
        with pytest.raises(ValueError, match=r"lacks expected entries \(1\), such as 'conv.weight'"):
            make(ends)


def test_a_change_is_clipped_to_the_bound_and_keeps_its_direction():
    """(3, 4) has length 5: clipped to 1 it is (0.6, 0.8); (0, 0.5) stays. With fractions 1/4 and 3/4: (0.15, 0.575)."""
    start = {"w": torch.zeros(2, dtype=torch.float64)}
    ends = [{"w": torch.tensor(end, dtype=torch.float64)} for end in ([3.0, 4.0], [0.0, 0.5])]
    result = clipped_average(start, ends, torch.tensor([0.25, 0.75], dtype=torch.float64), PARAMETERS, 1.0)["w"]
    assert torch.allclose(result, torch.tensor([0.15, 0.575], dtype=torch.float64), rtol=1e-15)


def test_the_norm_is_over_the_whole_network():
    """3 in one entry and 4 in another: length 5, so a bound of 1 takes a fifth of each."""
    start = {"a": torch.zeros(1, dtype=torch.float64), "b": torch.zeros(1, dtype=torch.float64)}
    end = {"a": torch.tensor([3.0], dtype=torch.float64), "b": torch.tensor([4.0], dtype=torch.float64)}
    assert change_norm(start, end) == 5
    result = clipped_average(start, [end], torch.ones(1, dtype=torch.float64), PARAMETERS, 1.0)
    assert result["a"].item() == pytest.approx(0.6) and result["b"].item() == pytest.approx(0.8)


def test_the_median_norm_is_the_bound_if_none_is_given():
    """Lengths 1, 2 and 30: the last is clipped to 2, so their mean is 5/3."""
    start = {"w": torch.zeros(1, dtype=torch.float64)}
    ends = [{"w": torch.tensor([end], dtype=torch.float64)} for end in (1.0, 2.0, 30.0)]
    shares = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert clipped_average(start, ends, shares, PARAMETERS)["w"].item() == pytest.approx(5 / 3)
    assert clipped_average(start, ends, shares, PARAMETERS, times=5.0)["w"].item() == pytest.approx(13 / 3)


@pytest.mark.parametrize("size", [10.0, 1e6, -1e17])
def test_one_outlier_moves_the_average_by_at_most_its_fraction_of_the_limit(size):
    start, ends = sites(5)[4], sites(4)
    shares = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    ends[1] = {name: entry * size if entry.is_floating_point() else entry for name, entry in ends[1].items()}
    calm = [ends[0], start, *ends[2:]]  # site 1 did not change
    for part in (learned, lambda w: {name: entry for name, entry in w.items() if "running" in name}):
        lengths = [change_norm(start, part(end)) for end in ends]
        middle = sorted(lengths)[1] / 2 + sorted(lengths)[2] / 2
        without_change = clipped_average(start, calm, shares, PARAMETERS, middle)
        moved = clipped_average(start, ends, shares, PARAMETERS, None)
        if part is learned:
            assert change_norm(part(without_change), part(moved)) <= 0.2 * middle * (1 + 1e-9)
        assert change_norm(start, part(moved)) <= middle * (1 + 1e-9)


def test_if_most_sites_did_not_change_no_change_is_allowed():
    start = {"w": torch.zeros(1)}
    ends = [start, start, {"w": torch.ones(1)}]
    assert clipped_average(start, ends, torch.full((3,), 1 / 3, dtype=torch.float64), PARAMETERS)["w"] == 0
