"""Norm clipping (Sun et al., 2019): limit how far a single site can move the global weights.

Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan: "Can You Really Backdoor Federated Learning?", 2019,
https://arxiv.org/abs/1911.07963.

Idea: scale down every change of the weights that is longer than a limit, then average. Sites send the same messages as
FedAvg.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from medfed.core.bounds import PositiveFloat
from medfed.federation.message import Message, State
from medfed.federation.method import ALL_DIMENSIONS, Method, SiteWeights, Tensors, site_fractions
from medfed.functional.weights import Weights, add_scaled_changes, average, change_norm


@dataclass(frozen=True)
class NormClipping(Method):
    """FedAvg that limits the length of each site's change of the weights.

    With the change D_k = w_k - w of site k and the limit M:

        w <- w + sum_k (n_k / N) D_k / max(1, ||D_k|| / M)

    A site moves the weights by at most (n_k / N) M, but still chooses the direction. BatchNorm's statistics have other
    units than weights, so their change is clipped separately, to `times` the median length of the sites' changes of the
    statistics; without this, a site could pass a large change through them. BatchNorm's integer counters take the
    maximum. If no change is longer than the limit, the result is bit-identical to FedAvg. With a single site nothing is
    clipped.

    Departures: the paper takes the limit as known; ours is by default the median length of the round's changes. The
    paper also adds Gaussian noise to the result, which we leave out. Its networks have no BatchNorm.

    Args:
        bound: largest length M of a site's change over all parameters (Euclidean norm), above 0; null uses `times` the
            median length of the round's changes.
        times: factor on the median length of the sites' changes, above 0. With 1, half of the sites are clipped in
            every round. Not used for the parameters if `bound` is set; always used for BatchNorm's statistics.
        site_weights: weights of the sites in the average: "examples" (n_k / N, in proportion to their numbers of
            images, as FedAvg) or "uniform" (1 / K). Choose "uniform" if the sites' numbers of images cannot be trusted:
            clipping limits the length of a site's change, not its weight in the average.
    """

    bound: PositiveFloat | None = None
    times: PositiveFloat = 1.0
    site_weights: SiteWeights = "examples"

    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """Add the average of the clipped changes to the global weights."""
        trained, fractions = [update.weights for update in updates.values()], site_fractions(updates, self.site_weights)
        return clipped_average(state.weights, trained, fractions, state.parameters, self.bound, self.times)


def clipped_average(
    start: Weights,
    trained: Sequence[Weights],
    fractions: Tensor,
    parameters: Collection[str],
    bound: float | None = None,
    times: float = 1.0,
) -> Tensors:
    """Clip the changes of the parameters to `bound`, and those of the buffers to `times` their median, and average."""
    learned = [{name: entry for name, entry in end.items() if name in parameters} for end in trained]
    buffers = [{name: entry for name, entry in end.items() if name not in parameters} for end in trained]
    merged = _clip_and_average(start, learned, fractions, bound, times)
    merged |= _clip_and_average(start, buffers, fractions, None, times)
    return {name: merged[name] for name in trained[0]}


def _clip_and_average(
    start: Weights, trained: Sequence[Weights], fractions: Tensor, limit: float | None, times: float
) -> Tensors:
    """Return w + sum_k p_k D_k / max(1, |D_k| / M); without a `limit` M it is `times` the median of |D_k|."""
    norms = [change_norm(start, weights) for weights in trained]
    limit = times * statistics.median(norms) if limit is None else limit
    if all(norm <= limit for norm in norms):
        return average(trained, fractions)
    scales = [
        fraction * min(1.0, limit / norm) if norm else fraction
        for fraction, norm in zip(fractions.tolist(), norms, strict=True)
    ]
    merged = average(trained, fractions)
    for name, entry in merged.items():
        if entry.is_floating_point():
            merged[name] = add_scaled_changes(start[name], [weights[name] for weights in trained], scales)
    return merged
