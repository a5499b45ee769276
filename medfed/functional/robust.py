"""Averages that one site cannot pull far, whatever it sends: median, trimmed mean, and changes cut to a length."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from medfed.functional.changes import is_statistic
from medfed.functional.weights import Weights, average, check_same_entries


def coordinate_median(weights: Sequence[Weights]) -> dict[str, Tensor]:
    """The median over K state dicts, element by element; the maximum for integers, as in `average`.

    Of an even number it is the mean of the middle two, and so of one or two state dicts their mean. Sites count alike.

    Returns:
        A new state dict in the dtypes of the first one; computed in float64. Every element lies between the smallest
        and the largest of any more than K / 2 of the K.
    """
    return _by_element(weights, lambda entries: _middle(entries, (len(entries) - 1) // 2))


def trimmed_mean(weights: Sequence[Weights], cut: int) -> dict[str, Tensor]:
    """The mean over K state dicts, element by element, without the `cut` smallest and the `cut` largest.

    Args:
        cut: at least 0 and below K / 2. 0 is `average` with equal shares, to the bit.

    Returns:
        As `coordinate_median`. Every element lies between the smallest and the largest of any K - cut of the K.
    """
    if not 0 <= 2 * cut < len(weights):
        raise ValueError(f"cut must be at least 0 and below half of {len(weights)} state dicts, got {cut}")
    if cut == 0:
        return average(weights, torch.full((len(weights),), 1 / len(weights), dtype=torch.float64))
    return _by_element(weights, lambda entries: _middle(entries, cut))


def clipped_average(
    start: Weights, ends: Sequence[Weights], shares: Tensor, bound: float | None = None, times: float = 1.0
) -> dict[str, Tensor]:
    """w + sum_k share_k c_k (w_k - w), with c_k = min(1, limit / |w_k - w|): no change is longer than the limit.

    Running statistics have units of their own, so their change is cut by itself, to `times` the median of its lengths.
    Of integers it is the maximum. Where nothing is cut the result is `average`, to the bit.

    Args:
        start: w; may have more entries than the ends.
        ends: w_k, K state dicts with the same entries.
        shares: (K,) at least 0, summing to 1.
        bound: the limit for what is learned, at least 0; None is `times` the median of the K lengths.
        times: at least 0.
    """
    for end in ends[1:]:
        check_same_entries(ends[0], end)
    parts = [learned(end) for end in ends]
    rest = [{name: entry for name, entry in end.items() if name not in part} for end, part in zip(ends, parts)]
    merged = _clipped(start, parts, shares, bound, times) | _clipped(start, rest, shares, None, times)
    return {name: merged[name] for name in ends[0]}


def _clipped(
    start: Weights, ends: Sequence[Weights], shares: Tensor, limit: float | None, times: float
) -> dict[str, Tensor]:
    lengths = [change_length(start, end) for end in ends]
    limit = times * statistics.median(lengths) if limit is None else limit
    if all(length <= limit for length in lengths):
        return average(ends, shares)
    scaled = [share * min(1.0, limit / length) if length else share
              for share, length in zip(shares.tolist(), lengths, strict=True)]  # fmt: skip
    merged = {}
    for name, first in ends[0].items():
        if not first.is_floating_point():
            merged |= average([{name: end[name]} for end in ends], shares)
            continue
        before = start[name].to(torch.float64)
        total = before.clone()
        for end, scale in zip(ends, scaled, strict=True):
            total.add_(end[name].to(torch.float64) - before, alpha=scale)
        merged[name] = total.to(first.dtype)
    return merged


def change_length(start: Weights, end: Weights) -> float:
    """|end - start|, the Euclidean norm over all floating-point entries of `end`, in float64.

    Args:
        start: may have more entries than `end`.
    """
    return math.hypot(*(
        float(torch.linalg.vector_norm(entry.to(torch.float64) - start[name].to(torch.float64)))
        for name, entry in end.items()
        if entry.is_floating_point()
    ))  # fmt: skip


def learned(weights: Weights) -> dict[str, Tensor]:
    """The entries that are learned, neither counted nor measured."""
    return {name: entry for name, entry in weights.items() if not is_statistic(name, entry)}


def _by_element(weights: Sequence[Weights], reduce: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Floating-point entries by `reduce`, of (K, ...) float64 sorted along the first axis."""
    if not weights:
        raise ValueError("there are no weights to put together")
    for other in weights[1:]:
        check_same_entries(weights[0], other)
    merged = {}
    for name, first in weights[0].items():
        entries = torch.stack([one[name] for one in weights])
        if first.is_floating_point():
            merged[name] = reduce(entries.to(torch.float64).sort(dim=0).values).to(first.dtype)
        else:
            merged[name] = entries.amax(dim=0)
    return merged


def _middle(entries: Tensor, cut: int) -> Tensor:
    """The mean of sorted entries (K, ...) without the first and the last `cut`."""
    return entries[cut : len(entries) - cut].mean(dim=0)
