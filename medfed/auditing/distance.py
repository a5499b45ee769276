"""Distance between shared statistics in which every entry of the vectors has the same weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class StandardizedDistance:
    """Euclidean distance between vectors whose entries are standardised first.

    Each entry is divided by its standard deviation over some example vectors, so that entries with large values do not
    dominate the distance. Entries that are positive in all examples, such as amplitudes, are compared on a logarithmic
    scale. Entries that are constant over the examples are ignored. Create an instance with `fit`.

    Args:
        logarithmic: (D,) bool, entries that are compared on a logarithmic scale.
        mean: (D,), mean of each entry over the examples.
        spread: (D,), standard deviation of each entry over the examples.
    """

    logarithmic: Tensor
    mean: Tensor
    spread: Tensor

    @classmethod
    def fit(cls, *examples: Tensor) -> StandardizedDistance:
        """Estimate the mean and the standard deviation of every vector entry from example vectors.

        An entry that is positive in all examples is converted to its logarithm first.

        Args:
            examples: one or more tensors (R, D) whose rows are example vectors; at least two rows in total.

        Returns:
            A distance that uses these means and standard deviations.
        """
        rows = torch.cat(examples)
        logarithmic = (rows > 0).all(dim=0)
        scaled = _scaled(rows, logarithmic)
        return cls(logarithmic, scaled.mean(dim=0), scaled.std(dim=0))

    def standardize(self, rows: Tensor) -> Tensor:
        """Standardise vectors with the means and standard deviations of the examples that were given to `fit`.

        Entries that are positive in all examples are converted to their logarithm first. Entries that are constant over
        the examples are removed.

        Args:
            rows: (R, D), one vector in each row.

        Returns:
            (R, d), where d is the number of entries that vary over the examples.
        """
        varies = self.spread > 1e-9 * (1 + self.mean.abs())
        return ((_scaled(rows, self.logarithmic) - self.mean) / self.spread)[:, varies]

    def pairwise(self, a: Tensor, b: Tensor) -> Tensor:
        """Compute the Euclidean distance of every row of `a` from every row of `b`, after standardising the rows.

        Args:
            a: (A, D), one vector in each row.
            b: (B, D), one vector in each row.

        Returns:
            (A, B), non-negative distances without a unit.
        """
        return torch.cdist(self.standardize(a), self.standardize(b))


def _scaled(rows: Tensor, logarithmic: Tensor) -> Tensor:
    """Take the logarithm of the chosen entries; the others are unchanged."""
    return torch.where(logarithmic, rows.clamp_min(1e-12).log(), rows)
