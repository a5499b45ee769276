"""Ways to combine the sites' trained weights into one set of weights, other than the plain weighted average.

All functions work on state dicts (entry name to tensor), need no network and no federation, and compute in float64.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from medfed.functional.weights import Weights, add_scaled, average, check_same_entries


def sign_agreement(changes: Sequence[Tensor], votes: Tensor) -> Tensor:
    """Return, element by element, how far the signs of K tensors agree.

        A = |sum_k v_k sign(change_k)| / sum_k v_k

    This is the agreement score of FedGMA (Tenison et al., "Gradient Masked Averaging for Federated Learning", TMLR
    2023, https://arxiv.org/abs/2201.11986).

    Args:
        changes: K tensors of one shape: the change of one weight tensor at each site. 0 agrees with neither sign.
        votes: (K,), v_k: how much the sign of each site counts, above 0. Whole numbers avoid rounding errors.

    Returns:
        A, float64 in [0, 1], in the shape of one change. 1 means that all signs agree.
    """
    total = torch.zeros(changes[0].shape, dtype=torch.float64)
    for change, vote in zip(changes, votes.tolist(), strict=True):
        total.add_(change.sign().to(torch.float64), alpha=vote)
    return total.abs() / float(votes.sum())


def gradient_masked_average(
    start: Weights,
    local_weights: Sequence[Weights],
    fractions: Tensor,
    votes: Tensor,
    parameters: Collection[str],
    threshold: float,
    step: float = 1.0,
) -> dict[str, Tensor]:
    """Average the sites' weight changes, and shrink each element for which the signs of the changes disagree (FedGMA).

        w + step * mask * sum_k p_k (w_k - w),   mask = 1 where A >= threshold, else A

    A is the agreement of the signs of w_k - w, as `sign_agreement` computes it. Implements Tenison et al., "Gradient
    Masked Averaging for Federated Learning", TMLR 2023, https://arxiv.org/abs/2201.11986. Where step * mask is 1, the
    result is bit-identical to the plain weighted average.

    Args:
        start: w, from which all sites started their local training; may have more entries than the local weights.
        local_weights: w_k, one state dict for each of K sites after its local training; K is at least 1.
        fractions: (K,), p_k: the weight of each site in the average, at least 0, with sum 1.
        votes: (K,), v_k: how much the sign of each site counts in A, above 0.
        parameters: names of the learned parameters. Other entries (buffers) are averaged without a mask.
        threshold: tau in [0, 1]; 0 shrinks nothing.
        step: factor of the averaged change.

    Returns:
        A new state dict with the entries, shapes and dtypes of the local weights.

    Raises:
        ValueError: if the fractions are negative or do not sum to 1.
    """
    merged: dict[str, Tensor] = {}
    for name, first in local_weights[0].items():
        entries = [weights[name] for weights in local_weights]
        if name not in parameters:
            merged |= average([{name: entry} for entry in entries], fractions)
            continue
        before = start[name].to(torch.float64)
        mean = average([{name: entry.to(torch.float64)} for entry in entries], fractions)[name]
        agreement = sign_agreement([entry - start[name] for entry in entries], votes)
        factor = step * torch.where(agreement >= threshold, 1.0, agreement)
        merged[name] = torch.where(factor == 1, mean, before + factor * (mean - before)).to(first.dtype)
    return merged


def effective_steps(steps: int, momentum: float) -> float:
    """Return how far SGD moves if all gradients are equal, in units of one step without momentum.

        l = (t - m (1 - m^t) / (1 - m)) / (1 - m)

    FedNova's norm of the accumulation vector; the momentum m is in [0, 1), and its buffer starts at 0.
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def normalized_average(
    start: Weights, local_weights: Sequence[Weights], fractions: Tensor, lengths: Tensor, parameters: Collection[str]
) -> dict[str, Tensor]:
    """Average the sites' weight changes per local step, then multiply by the mean number of steps (FedNova).

        w + L sum_k p_k (w_k - w) / l_k,   L = sum_k p_k l_k

    The influence of a site is therefore p_k, however many local steps the site makes. Implements Wang et al., "Tackling
    the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020,
    https://arxiv.org/abs/2007.07481. If all lengths are equal, the result is bit-identical to the plain weighted
    average.

    Args:
        start: w, from which all sites started their local training; may have more entries than the local weights.
        local_weights: w_k, one state dict for each of K sites after its local training; K is at least 1.
        fractions: (K,), p_k: the weight of each site in the average, at least 0, with sum 1.
        lengths: (K,), l_k, above 0: the number of local steps of each site, corrected for momentum.
        parameters: names of the learned parameters. Other entries (buffers) get the plain weighted average.

    Returns:
        A new state dict with the entries, shapes and dtypes of the local weights.
    """
    if bool((lengths == lengths[0]).all()):
        return average(local_weights, fractions)
    scales = (fractions * (fractions * lengths).sum() / lengths).tolist()
    merged: dict[str, Tensor] = {}
    for name, first in local_weights[0].items():
        if name not in parameters:
            merged |= average([{name: weights[name]} for weights in local_weights], fractions)
            continue
        before = start[name].to(torch.float64)
        changes = [weights[name].to(torch.float64) - before for weights in local_weights]
        merged[name] = add_scaled(before, changes, scales).to(first.dtype)
    return merged


def coordinate_median(weights: Sequence[Weights]) -> dict[str, Tensor]:
    """Return the element-wise median of K state dicts, one per site. All sites have equal influence.

    For an even K the median is the mean of the two middle values. Integer entries (counters) get the largest value. If
    fewer than K / 2 sites are faulty, each element lies between the smallest and the largest value of the other sites.
    See Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018,
    https://arxiv.org/abs/1803.01498, algorithm 1, option I, which takes the median of gradients instead of weights.

    Args:
        weights: K state dicts with the same entries, K at least 1.

    Returns:
        A new state dict with the shapes and dtypes of the first one, computed in float64.

    Raises:
        ValueError: if there are no state dicts, or their entries differ in name, shape or dtype.
    """
    return _reduce_elementwise(weights, lambda entries: _mean_without_extremes(entries, (len(entries) - 1) // 2))


def trimmed_mean(weights: Sequence[Weights], cut: int) -> dict[str, Tensor]:
    """Return the element-wise mean of K state dicts, one per site, without the `cut` smallest and `cut` largest values.

    Integer entries (counters) get the largest value. If at most `cut` sites are faulty, each element lies between the
    smallest and the largest value of the other sites. See Yin et al., ICML 2018, https://arxiv.org/abs/1803.01498, who
    take the mean of gradients instead of weights.

    Args:
        weights: K state dicts with the same entries.
        cut: at least 0 and below K / 2. 0 gives the plain average with equal weights.

    Returns:
        A new state dict with the shapes and dtypes of the first one, computed in float64.

    Raises:
        ValueError: if `cut` is out of range, or the entries differ in name, shape or dtype.
    """
    if not 0 <= 2 * cut < len(weights):
        raise ValueError(f"cut must be at least 0 and below half of {len(weights)} state dicts, got {cut}")
    if cut == 0:
        return average(weights, torch.full((len(weights),), 1 / len(weights), dtype=torch.float64))
    return _reduce_elementwise(weights, lambda entries: _mean_without_extremes(entries, cut))


def clipped_average(
    start: Weights,
    local_weights: Sequence[Weights],
    fractions: Tensor,
    parameters: Collection[str],
    bound: float | None = None,
    times: float = 1.0,
) -> dict[str, Tensor]:
    """Average the sites' weight changes after scaling down every change whose Euclidean norm exceeds a limit.

        w + sum_k p_k c_k (w_k - w),   c_k = min(1, limit / |w_k - w|)

    See Sun et al., "Can You Really Backdoor Federated Learning?", 2019, https://arxiv.org/abs/1911.07963. Learned
    parameters and buffers (such as running statistics) are scaled separately, because their units differ. Integer
    entries (counters) get the largest value. If no change exceeds the limit, the result is bit-identical to the plain
    weighted average.

    Args:
        start: w, from which all sites started their local training; may have more entries than the local weights.
        local_weights: w_k, one state dict for each of K sites after its local training.
        fractions: (K,), p_k: the weight of each site in the average, at least 0, with sum 1.
        parameters: names of the learned parameters. Other floating-point entries are buffers.
        bound: limit for the norm over all parameters together. None takes `times` the median of the sites' norms, which
            is always the limit for the buffers.
        times: factor of the median norm, at least 0.

    Returns:
        A new state dict with the entries, shapes and dtypes of the local weights.

    Raises:
        ValueError: if the local weights differ in name, shape or dtype of their entries, or the fractions are negative
            or do not sum to 1.
    """
    for weights in local_weights[1:]:
        check_same_entries(local_weights[0], weights)
    learned = [{name: entry for name, entry in end.items() if name in parameters} for end in local_weights]
    buffers = [{name: entry for name, entry in end.items() if name not in parameters} for end in local_weights]
    merged = _clip_and_average(start, learned, fractions, bound, times)
    merged |= _clip_and_average(start, buffers, fractions, None, times)
    return {name: merged[name] for name in local_weights[0]}


def _clip_and_average(
    start: Weights, local_weights: Sequence[Weights], fractions: Tensor, limit: float | None, times: float
) -> dict[str, Tensor]:
    """Clip and average one group of entries; None takes `times` the median norm as the limit."""
    norms = [change_norm(start, weights) for weights in local_weights]
    limit = times * statistics.median(norms) if limit is None else limit
    if all(norm <= limit for norm in norms):
        return average(local_weights, fractions)
    scales = [
        fraction * min(1.0, limit / norm) if norm else fraction
        for fraction, norm in zip(fractions.tolist(), norms, strict=True)
    ]
    merged: dict[str, Tensor] = {}
    for name, first in local_weights[0].items():
        if not first.is_floating_point():
            merged |= average([{name: weights[name]} for weights in local_weights], fractions)
            continue
        before = start[name].to(torch.float64)
        changes = [weights[name].to(torch.float64) - before for weights in local_weights]
        merged[name] = add_scaled(before, changes, scales).to(first.dtype)
    return merged


def change_norm(start: Weights, end: Weights) -> float:
    """Return the Euclidean norm of `end` - `start` over all floating-point entries of `end` together."""
    return math.hypot(
        *(
            float(torch.linalg.vector_norm(entry.to(torch.float64) - start[name].to(torch.float64)))
            for name, entry in end.items()
            if entry.is_floating_point()
        )
    )


def _reduce_elementwise(weights: Sequence[Weights], reduce: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Apply `reduce` to each floating-point entry, stacked to (K, ...) float64 and sorted along the first axis."""
    if not weights:
        raise ValueError("weights must hold at least one state dict, got none")
    for other in weights[1:]:
        check_same_entries(weights[0], other)
    merged = {}
    for name, first in weights[0].items():
        entries = torch.stack([state[name] for state in weights])
        if first.is_floating_point():
            merged[name] = reduce(entries.to(torch.float64).sort(dim=0).values).to(first.dtype)
        else:
            merged[name] = entries.amax(dim=0)
    return merged


def _mean_without_extremes(entries: Tensor, cut: int) -> Tensor:
    """Return the mean of sorted entries (K, ...) along the first axis, without the first and the last `cut`."""
    return entries[cut : len(entries) - cut].mean(dim=0)


def add_new_sites(weights: Mapping[str, float], sites: Iterable[str]) -> dict[str, float]:
    """Give each new site the mean aggregation weight of the known sites, then scale all weights to sum 1.

    `weights` maps known sites to their factors in the average; if it is empty, all `sites` get the same weight.
    """
    mean = sum(weights.values()) / len(weights) if weights else 1.0
    extended = {**weights, **{site: mean for site in sites if site not in weights}}
    total = sum(extended[site] for site in sorted(extended))
    return {site: extended[site] / total for site in sorted(extended)}


def adjust_site_weights(
    weights: Mapping[str, float], present: Sequence[str], gaps: Mapping[str, float], step: float
) -> dict[str, float]:
    """Increase the aggregation weights of sites with a large generalisation gap and decrease the others (FedDG-GA).

        a_k <- max(0, a_k + step (G_k - mean G) / max |G - mean G|)

    The aggregation weight a_k is the factor of site k's network weights in the average over the sites. The weights of
    the sites in `present` are then scaled so that their sum stays the same. With equal gaps, fewer than two gaps, or
    step 0, nothing changes. See Zhang et al., "Federated Domain Generalization with Generalization Adjustment", CVPR
    2023.

    Args:
        weights: a_k, aggregation weight by site name, at least 0, with sum 1.
        present: names of the sites in `weights` whose weights may change.
        gaps: G_k by site name: the loss of the global model minus the loss of the site's own model, both on the site's
            data. A present site without a gap is treated as having the mean gap.
        step: d, the largest change of a weight before scaling, at least 0.

    Returns:
        A new dict: aggregation weight by site name, at least 0, for all sites of `weights`.
    """
    if len(gaps) < 2:
        return dict(weights)
    mean = sum(gaps.values()) / len(gaps)
    largest = max(abs(gap - mean) for gap in gaps.values())
    former_sum = sum(weights[site] for site in present)
    if largest == 0 or step == 0:
        return dict(weights)
    moved = {site: max(0.0, weights[site] + step * (gaps.get(site, mean) - mean) / largest) for site in present}
    total = sum(moved.values())
    return {**weights, **{site: former_sum * a / total for site, a in moved.items()}}
