"""What sites changed, put together otherwise than by a plain average: by agreement of signs, or by number of steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from medfed.functional.weights import Weights, average

# What PyTorch's normalisation layers call theirs, and `networks.amplitude_normaliser` the common amplitudes.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked", "window")


def is_statistic(name: str, entry: Tensor) -> bool:
    """Whether an entry of a state dict was counted or measured, not learned: a layer's running statistics, integers."""
    return not entry.is_floating_point() or name.rpartition(".")[2] in STATISTICS


def agreement(changes: Sequence[Tensor], votes: Tensor) -> Tensor:
    """A = |sum_k v_k sign(change_k)| / sum_k v_k, element by element (FedGMA).

    Args:
        changes: K tensors of one shape. A change of 0 agrees with nobody.
        votes: (K,), above 0; whole numbers make the share exact.

    Returns:
        float64 in [0, 1], of that shape: 1 where all signs agree; of three equal votes, 1/3 where one differs.
    """
    total = torch.zeros(changes[0].shape, dtype=torch.float64)
    for change, vote in zip(changes, votes.tolist(), strict=True):
        total.add_(change.sign().to(torch.float64), alpha=vote)
    return total.abs() / float(votes.sum())


def masked_average(
    start: Weights, ends: Sequence[Weights], shares: Tensor, votes: Tensor, threshold: float, step: float = 1.0
) -> dict[str, Tensor]:
    """w + step * mask * sum_k share_k (w_k - w), with mask 1 where A >= threshold, and A elsewhere (FedGMA).

    Statistics are averaged. Where step times mask is 1 the result is `average`, to the bit.

    Args:
        start: w; may have more entries than the ends.
        ends: w_k, K state dicts with the same entries.
        shares: (K,) at least 0, summing to 1; votes: as in `agreement`.
        threshold: tau in [0, 1].
    """
    merged = {}
    for name, first in ends[0].items():
        entries = [end[name] for end in ends]
        if is_statistic(name, first):
            merged |= average([{name: entry} for entry in entries], shares)
            continue
        before = start[name].to(torch.float64)
        mean = average([{name: entry.to(torch.float64)} for entry in entries], shares)[name]
        agreed = agreement([entry - start[name] for entry in entries], votes)
        factor = step * torch.where(agreed >= threshold, 1.0, agreed)
        merged[name] = torch.where(factor == 1, mean, before + factor * (mean - before)).to(first.dtype)
    return merged


def rescaled_average(start: Weights, ends: Sequence[Weights], shares: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    """w + L sum_k share_k (w_k - w) / l_k, with L = sum_k share_k l_k: change a step, times the mean length (FedNova).

    Statistics are averaged. Where all lengths are equal the result is `average`, to the bit.

    Args:
        start, ends, shares: as in `masked_average`.
        lengths: (K,) l_k, above 0.
    """
    if bool((lengths == lengths[0]).all()):
        return average(ends, shares)
    scales = (shares * (shares * lengths).sum() / lengths).tolist()
    merged = {}
    for name, first in ends[0].items():
        if is_statistic(name, first):
            merged |= average([{name: end[name]} for end in ends], shares)
            continue
        total = start[name].to(torch.float64, copy=True)
        for end, scale in zip(ends, scales, strict=True):
            total.add_(end[name].to(torch.float64) - start[name].to(torch.float64), alpha=scale)
        merged[name] = total.to(first.dtype)
    return merged
