"""Quantiles of all values of a tensor are those of `torch.quantile`."""

import pytest
import torch

from medfed.transforms.scale_intensity import quantiles


def test_a_quantile_between_two_values_is_interpolated():
    """Of 0, 10, 20, 30, 40 the fraction 0.3 lies at position 1.2."""
    values = torch.tensor([[30.0, 0.0], [10.0, 40.0]])
    assert quantiles(torch.tensor([30.0, 0.0, 20.0, 10.0, 40.0]), [0.0, 0.3, 0.5, 1.0]).tolist() == [0, 12, 20, 40]
    assert quantiles(values, [0.5]).tolist() == [20], "the mean of 10 and 30, in any shape"


@pytest.mark.parametrize("n", [1, 2, 199, 200, 201, 50_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_bits_are_those_of_torch(n, dtype):
    generator, fractions = torch.Generator().manual_seed(n), [0.005, 1 / 3, 0.995]
    for values in (torch.randn(n, generator=generator) * 1000, torch.randint(0, 9, (n,), generator=generator).float()):
        values = values.to(dtype)
        assert torch.equal(quantiles(values, fractions), torch.quantile(values, torch.tensor(fractions, dtype=dtype)))
