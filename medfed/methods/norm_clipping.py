"""Norm clipping (Sun et al., 2019): limit how far a single site can move the global weights.

Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan: "Can You Really Backdoor Federated Learning?", 2019,
https://arxiv.org/abs/1911.07963.

Idea: scale down every change of the weights that is longer than a limit, then average. Sites send the same messages as
FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from medfed.core.bounds import PositiveFloat
from medfed.federation.message import Message, State
from medfed.federation.method import Method, SiteWeights, Tensors
from medfed.functional.aggregation import clipped_average


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

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """Add the average of the clipped changes to the global weights."""
        trained_weights, site_weights = [update.weights for update in updates.values()], self.averaging_weights(updates)
        return clipped_average(  # norm thresholding: the formula of the class docstring
            state.weights, trained_weights, site_weights, state.parameters, self.bound, self.times
        )
