"""Distance between shared statistics in which every entry of the vectors has the same weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class StandardizedDistance:
    """Euclidean distance between vectors whose D entries are standardised by some example vectors (`fit`).

    Entries that are positive in all examples (`logarithmic`), such as amplitudes, are compared on a logarithmic scale.
    Entries that are constant over the examples are ignored.
    """

    logarithmic: Tensor
    mean: Tensor
    spread: Tensor

    @classmethod
    def fit(cls, *examples: Tensor) -> StandardizedDistance:
        """Estimate mean and standard deviation from tensors (R, D) of example vectors, at least two rows in total."""
        rows = torch.cat(examples)
        logarithmic = (rows > 0).all(dim=0)
        scaled = _scaled(rows, logarithmic)
        return cls(logarithmic, scaled.mean(dim=0), scaled.std(dim=0))

    def standardize(self, rows: Tensor) -> Tensor:
        """(R, D) to (R, d), where d is the number of entries that vary over the examples."""
        varies = self.spread > 1e-9 * (1 + self.mean.abs())
        return ((_scaled(rows, self.logarithmic) - self.mean) / self.spread)[:, varies]

    def pairwise(self, a: Tensor, b: Tensor) -> Tensor:
        """Distances (A, B) of the standardised rows (A, D) and (B, D)."""
        return torch.cdist(self.standardize(a), self.standardize(b))


def _scaled(rows: Tensor, logarithmic: Tensor) -> Tensor:
    """Take the logarithm of the chosen entries; the others are unchanged."""
    return torch.where(logarithmic, rows.clamp_min(1e-12).log(), rows)
