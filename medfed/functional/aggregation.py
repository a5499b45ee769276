"""Ways to combine the sites' trained weights into one set of weights, other than the plain weighted average.

All functions work on state dicts (entry name to tensor), need no network and no federation, and compute in float64.
Names of arguments that several functions share:

    start: w, the weights from which all sites started their local training.
    local_weights: w_k, one state dict per site, after its local training.
    fractions: p_k, the sites' weights in the average, for example their fractions of all training images.
    parameters: the names of the entries that are learned parameters. All other entries are buffers (running statistics
        and counters), which are not trained by gradients.
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

    This is the agreement score A of FedGMA (Tenison et al., "Gradient Masked Averaging for Federated Learning", TMLR
    2023, https://arxiv.org/abs/2201.11986).

    Args:
        changes: K tensors of one shape: how local training changed one weight tensor at each of K sites. The sign of 0
            is 0, so an unchanged element agrees with neither sign.
        votes: (K,), v_k: how much the sign of each site counts, above 0. If the votes are whole numbers, the two sums
            have no rounding error.

    Returns:
        A, float64 in [0, 1], in the shape of one change. 1 means that all signs agree. With three equal votes, 1/3
        means that one sign differs from the other two.
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

    A in [0, 1] is the agreement of the signs of w_k - w, as `sign_agreement` computes it for each element. Implements
    FedGMA (Tenison et al., "Gradient Masked Averaging for Federated Learning", TMLR 2023,
    https://arxiv.org/abs/2201.11986). Where step * mask is 1, the result is bit-identical to the plain weighted
    average.

    Args:
        start: w, the weights from which all sites started their local training. `start` may have more entries than the
            local weights.
        local_weights: w_k, one state dict for each of K sites after its local training, all with the same entries. K is
            at least 1.
        fractions: (K,), p_k: the weight of each site in the average, at least 0, with sum 1.
        votes: (K,), v_k: how much the sign of each site counts in A, above 0.
        parameters: names of the learned parameters. All other entries (buffers such as running statistics) are
            averaged without a mask.
        threshold: an element is not shrunk if its agreement A is at least this number in [0, 1] (tau in the paper). 0
            shrinks nothing.
        step: factor of the averaged change. 1 makes the full step.

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
    """Return how far SGD with momentum moves if all gradients are equal, in units of one step without momentum.

        l = (t - m (1 - m^t) / (1 - m)) / (1 - m)

    The momentum buffer starts at 0. FedNova calls l the norm of the accumulation vector (Wang et al., "Tackling the
    Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020,
    https://arxiv.org/abs/2007.07481).

    Args:
        steps: t, number of optimiser steps, at least 0.
        momentum: m, the momentum of SGD, in [0, 1). With 0 the result is t.

    Returns:
        The distance l, at least t.
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
        start: w, the weights from which all sites started their local training. `start` may have more entries than the
            local weights.
        local_weights: w_k, one state dict for each of K sites after its local training, all with the same entries. K is
            at least 1.
        fractions: (K,), p_k: the weight of each site in the average, at least 0, with sum 1.
        lengths: (K,), l_k, above 0: the number of local steps of each site, with the effect of momentum included as
            `effective_steps` computes it.
        parameters: names of the learned parameters. For all other entries (buffers such as running statistics) the
            result is the plain weighted average.

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

    For an even K the median is the mean of the two middle values, so for K = 1 or 2 it is the mean. Integer entries
    (counters) have no median: the largest value is taken. See Yin et al., "Byzantine-Robust Distributed Learning:
    Towards Optimal Statistical Rates", ICML 2018, https://arxiv.org/abs/1803.01498, algorithm 1, option I. The paper
    takes the median of gradients, this function the median of weights.

    Args:
        weights: K state dicts with the same entries, K at least 1.

    Returns:
        A new state dict with the shapes and dtypes of the first state dict, computed in float64. If fewer than K / 2
        sites are faulty, each element lies between the smallest and the largest value of the sites that are not faulty.

    Raises:
        ValueError: if there are no state dicts, or their entries differ in name, shape or dtype.
    """
    return _reduce_elementwise(weights, lambda entries: _mean_without_extremes(entries, (len(entries) - 1) // 2))


def trimmed_mean(weights: Sequence[Weights], cut: int) -> dict[str, Tensor]:
    """Return the element-wise mean of K state dicts, one per site, without the `cut` smallest and `cut` largest values.

    For integer entries (counters) the largest value is taken. See Yin et al., "Byzantine-Robust Distributed Learning:
    Towards Optimal Statistical Rates", ICML 2018, https://arxiv.org/abs/1803.01498. The paper takes the mean of
    gradients, this function the mean of weights.

    Args:
        weights: K state dicts with the same entries.
        cut: how many of the K values of an element are removed at each end, at least 0 and below K / 2. With 0 the
            result is bit-identical to the plain average in which all state dicts have the weight 1 / K.

    Returns:
        A new state dict with the shapes and dtypes of the first state dict, computed in float64. If at most `cut` sites
        are faulty, each element lies between the smallest and the largest value of the sites that are not faulty.

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
    parameters and buffers (such as running statistics) are scaled separately, because they have different units. The
    limit for the buffers is always `times` the median norm of the sites' buffer changes. For integer entries (counters)
    the largest value is taken. If no change exceeds the limit, the result is bit-identical to the plain weighted
    average.

    Args:
        start: w, the weights from which all sites started their local training. `start` may have more entries than the
            local weights.
        local_weights: w_k, one state dict for each of K sites after its local training, all with the same entries.
        fractions: (K,), p_k: the weight of each site in the average, at least 0, with sum 1.
        parameters: names of the learned parameters. Floating-point entries that are not among them are buffers.
        bound: limit for the norm of a site's change, over all parameters together, at least 0. None sets the limit to
            `times` the median of the sites' norms.
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
    """Clip and average one group of entries with one limit; None takes `times` the median norm as the limit."""
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
    """Return the Euclidean norm of `end` - `start` over all floating-point entries together.

    Args:
        start: the weights before training, by entry name. It may have more entries than `end`.
        end: the weights after training, by entry name. Integer entries are ignored.

    Returns:
        |end - start|, at least 0, computed in float64.
    """
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
    """Return aggregation weights that include new sites: each new site gets the mean weight of the known sites.

    An aggregation weight is the factor of a site's network weights in the average over the sites. All aggregation
    weights are then scaled to sum 1.

    Args:
        weights: aggregation weight by name of a known site, at least 0; not changed. If it is empty, all `sites` get
            the same weight.
        sites: names of the sites to include. Names that are already known are ignored.

    Returns:
        A new dict: aggregation weight by site name, with sum 1, sorted by name.
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

    The aggregation weight a_k is the factor of site k's network weights in the average over the sites. The new weights
    of the sites in `present` are then scaled so that their sum stays the same. All other weights stay as they are. With
    equal gaps, fewer than two gaps, or step 0, nothing changes. Implements the adjustment of Zhang et al., "Federated
    Domain Generalization with Generalization Adjustment", CVPR 2023.

    Args:
        weights: a_k, aggregation weight by site name, at least 0, with sum 1; not changed.
        present: names of the sites whose weights may change, all of them in `weights`.
        gaps: G_k, the generalisation gap by site name: the loss of the global model minus the loss of the site's own
            model, both on the site's data. A present site without a gap is treated as having the mean gap.
        step: the largest change of a weight before scaling, at least 0 (d in the paper).

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
