"""Who in a batch is compared with whom."""

from __future__ import annotations

import torch
from torch import Tensor


def same_class(labels: Tensor, rng: torch.Generator) -> Tensor:
    """For every sample another one of its class, at random; itself where there is none.

    Args:
        labels: (B,), integers, on the CPU.

    Returns:
        (B,), int64.
    """
    others = labels[:, None] == labels[None, :]
    others.fill_diagonal_(False)
    chosen, found = _one_a_row(others, rng)
    return torch.where(found, chosen, torch.arange(len(labels)))


def other_class(labels: Tensor, candidates: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """For every sample one candidate of another class, at random.

    Args:
        labels: (A,), integers, on the CPU; candidates: (B,), theirs.

    Returns:
        Numbers of candidates (A,), and whether there is one (A,); where not, the number means nothing.
    """
    return _one_a_row(labels[:, None] != candidates[None, :], rng)


def _one_a_row(allowed: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Of each row of (A, B) one column that is allowed, all equally likely; and whether there is any."""
    draws = torch.rand(allowed.shape, generator=rng).masked_fill(~allowed, -1)
    return draws.argmax(dim=1), allowed.any(dim=1)
