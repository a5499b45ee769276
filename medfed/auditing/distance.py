"""How far apart two shared statistics are: standardised, so that a large number does not hide the small ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class StandardizedDistance:
    """Euclidean distance of vectors in which each number is divided by its spread over some examples.

    Numbers that are positive in all of them (amplitudes, deviations) are compared by their logarithms; those that do
    not vary are left out.
    """

    logarithmic: Tensor
    mean: Tensor
    spread: Tensor

    @classmethod
    def fit(cls, *examples: Tensor) -> StandardizedDistance:
        """Of vectors (R, D), of which there must be two in all."""
        rows = torch.cat(examples)
        logarithmic = (rows > 0).all(dim=0)
        scaled = _scaled(rows, logarithmic)
        return cls(logarithmic, scaled.mean(dim=0), scaled.std(dim=0))

    def standardize(self, rows: Tensor) -> Tensor:
        """(R, D) to (R, d)."""
        varies = self.spread > 1e-9 * (1 + self.mean.abs())
        return ((_scaled(rows, self.logarithmic) - self.mean) / self.spread)[:, varies]

    def pairwise(self, a: Tensor, b: Tensor) -> Tensor:
        """(A, D) and (B, D) to (A, B)."""
        return torch.cdist(self.standardize(a), self.standardize(b))


def _scaled(rows: Tensor, logarithmic: Tensor) -> Tensor:
    return torch.where(logarithmic, rows.clamp_min(1e-12).log(), rows)
