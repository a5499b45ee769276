"""Quantiles of all values of a tensor are those of `torch.quantile`."""

import pytest
import torch

from medfed.transforms.scale_intensity import quantiles


@pytest.mark.parametrize("n", [1, 2, 199, 200, 201, 50_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_bits_are_those_of_torch(n, dtype):
    generator, fractions = torch.Generator().manual_seed(n), [0.005, 1 / 3, 0.995]
    for values in (torch.randn(n, generator=generator) * 1000, torch.randint(0, 9, (n,), generator=generator).float()):
        values = values.to(dtype)
        assert torch.equal(quantiles(values, fractions), torch.quantile(values, torch.tensor(fractions, dtype=dtype)))
