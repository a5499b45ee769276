"""Aggregations of the sites' weights other than the plain average.

Arguments that several functions share:

    start: w, the weights with which the round started; may have more entries than `ends`.
    ends: w_k, K state dicts with the same entries.
    shares: (K,) at least 0, summing to 1; the sites' weights in an average.
    parameters: the names of the entries that are parameters of the network. The others are buffers (running statistics
        and counters): they have no direction and are averaged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from medfed.functional.weights import Weights, add_scaled, average, check_same_entries


def sign_agreement(changes: Sequence[Tensor], votes: Tensor) -> Tensor:
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


def gradient_masked_average(
    start: Weights, ends: Sequence[Weights], shares: Tensor, votes: Tensor, parameters: Collection[str],
    threshold: float, step: float = 1.0,
) -> dict[str, Tensor]:  # fmt: skip
    """w + step * mask * sum_k share_k (w_k - w), with mask 1 where A >= threshold, and A elsewhere (FedGMA).

    Where step times mask is 1 the result is `average`, to the bit.

    Args:
        start, ends, shares, parameters: see the module.
        votes: (K,), as in `sign_agreement`.
        threshold: tau in [0, 1].
        step: the coordinator's step size.
    """
    merged: dict[str, Tensor] = {}
    for name, first in ends[0].items():
        entries = [end[name] for end in ends]
        if name not in parameters:
            merged |= average([{name: entry} for entry in entries], shares)
            continue
        before = start[name].to(torch.float64)
        mean = average([{name: entry.to(torch.float64)} for entry in entries], shares)[name]
        agreed = sign_agreement([entry - start[name] for entry in entries], votes)
        factor = step * torch.where(agreed >= threshold, 1.0, agreed)
        merged[name] = torch.where(factor == 1, mean, before + factor * (mean - before)).to(first.dtype)
    return merged


def effective_steps(steps: int, momentum: float) -> float:
    """How far SGD with momentum, from rest, moves in `steps` steps of equal gradients, in units of one plain step.

        l = (t - m (1 - m^t) / (1 - m)) / (1 - m)                                              (FedNova)

    Args:
        steps: t, at least 0.
        momentum: m in [0, 1); 0 returns t.
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def normalized_average(
    start: Weights, ends: Sequence[Weights], shares: Tensor, lengths: Tensor, parameters: Collection[str]
) -> dict[str, Tensor]:
    """w + L sum_k share_k (w_k - w) / l_k, with L = sum_k share_k l_k: change a step, times the mean length (FedNova).

    Where all lengths are equal the result is `average`, to the bit.

    Args:
        start, ends, shares, parameters: see the module.
        lengths: (K,) l_k, above 0.
    """
    if bool((lengths == lengths[0]).all()):
        return average(ends, shares)
    scales = (shares * (shares * lengths).sum() / lengths).tolist()
    merged: dict[str, Tensor] = {}
    for name, first in ends[0].items():
        if name not in parameters:
            merged |= average([{name: end[name]} for end in ends], shares)
            continue
        before = start[name].to(torch.float64)
        changes = [end[name].to(torch.float64) - before for end in ends]
        merged[name] = add_scaled(before, changes, scales).to(first.dtype)
    return merged


def coordinate_median(weights: Sequence[Weights]) -> dict[str, Tensor]:
    """The median over K state dicts, element by element; the maximum for integers, as in `average`.

    Of an even number it is the mean of the middle two, and so of one or two state dicts their mean. Sites count alike.

    Returns:
        A new state dict in the dtypes of the first one; computed in float64. Every element lies between the smallest
        and the largest of any more than K / 2 of the K.
    """
    return _reduce_elementwise(weights, lambda entries: _mean_without_extremes(entries, (len(entries) - 1) // 2))


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
    return _reduce_elementwise(weights, lambda entries: _mean_without_extremes(entries, cut))


def clipped_average(
    start: Weights, ends: Sequence[Weights], shares: Tensor, parameters: Collection[str],
    bound: float | None = None, times: float = 1.0,
) -> dict[str, Tensor]:  # fmt: skip
    """w + sum_k share_k c_k (w_k - w), with c_k = min(1, limit / |w_k - w|): no change is longer than the limit.

    Running statistics have units of their own, so their change is cut by itself, to `times` the median of its lengths.
    Of integers it is the maximum. Where nothing is cut the result is `average`, to the bit.

    Args:
        start, ends, shares, parameters: see the module.
        bound: the limit for the change of the parameters, at least 0; None is `times` the median of the K lengths.
        times: at least 0.
    """
    for end in ends[1:]:
        check_same_entries(ends[0], end)
    learned = [{name: entry for name, entry in end.items() if name in parameters} for end in ends]
    buffers = [{name: entry for name, entry in end.items() if name not in parameters} for end in ends]
    merged = _clip_and_average(start, learned, shares, bound, times) | _clip_and_average(
        start, buffers, shares, None, times
    )
    return {name: merged[name] for name in ends[0]}


def _clip_and_average(
    start: Weights, ends: Sequence[Weights], shares: Tensor, limit: float | None, times: float
) -> dict[str, Tensor]:
    lengths = [change_norm(start, end) for end in ends]
    limit = times * statistics.median(lengths) if limit is None else limit
    if all(length <= limit for length in lengths):
        return average(ends, shares)
    scaled = [share * min(1.0, limit / length) if length else share
              for share, length in zip(shares.tolist(), lengths, strict=True)]  # fmt: skip
    merged: dict[str, Tensor] = {}
    for name, first in ends[0].items():
        if not first.is_floating_point():
            merged |= average([{name: end[name]} for end in ends], shares)
            continue
        before = start[name].to(torch.float64)
        changes = [end[name].to(torch.float64) - before for end in ends]
        merged[name] = add_scaled(before, changes, scaled).to(first.dtype)
    return merged


def change_norm(start: Weights, end: Weights) -> float:
    """|end - start|, the Euclidean norm over all floating-point entries of `end`, in float64.

    Args:
        start: may have more entries than `end`.
    """
    return math.hypot(*(
        float(torch.linalg.vector_norm(entry.to(torch.float64) - start[name].to(torch.float64)))
        for name, entry in end.items()
        if entry.is_floating_point()
    ))  # fmt: skip


def _reduce_elementwise(weights: Sequence[Weights], reduce: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
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


def _mean_without_extremes(entries: Tensor, cut: int) -> Tensor:
    """The mean of sorted entries (K, ...) without the first and the last `cut`."""
    return entries[cut : len(entries) - cut].mean(dim=0)


def add_new_sites(weights: Mapping[str, float], sites: Iterable[str]) -> dict[str, float]:
    """Aggregation weights with those of new sites, each the mean of the known ones; scaled to sum 1, sorted by name."""
    mean = sum(weights.values()) / len(weights) if weights else 1.0
    extended = {**weights, **{site: mean for site in sites if site not in weights}}
    total = sum(extended[site] for site in sorted(extended))
    return {site: extended[site] / total for site in sorted(extended)}


def adjust_site_weights(
    weights: Mapping[str, float], present: Sequence[str], gaps: Mapping[str, float], step: float
) -> dict[str, float]:
    """a_k + step (G_k - mean G) / max |G - mean G|, cut at 0, for the sites present (FedDG-GA).

    The sum over the sites present stays as it was; the other sites keep their weights. Equal gaps, or fewer than two,
    change nothing.

    Args:
        weights: by site, at least 0, summing to 1.
        present: the sites whose weights may change.
        gaps: of some of the sites present; the weights of the others only follow the sum.
        step: at least 0.
    """
    if len(gaps) < 2:
        return dict(weights)
    mean = sum(gaps.values()) / len(gaps)
    largest = max(abs(gap - mean) for gap in gaps.values())
    held = sum(weights[site] for site in present)
    if largest == 0 or step == 0:
        return dict(weights)
    moved = {site: max(0.0, weights[site] + step * (gaps.get(site, mean) - mean) / largest) for site in present}
    total = sum(moved.values())
    return {**weights, **{site: held * a / total for site, a in moved.items()}}
