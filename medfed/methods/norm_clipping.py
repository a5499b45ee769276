"""Norm clipping (Sun et al., 2019): no hospital may move the weights further than the others do.

Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan: "Can You Really Backdoor Federated Learning?", 2019,
https://arxiv.org/abs/1911.07963. Idea: scale down every change that is longer than a limit, then average.
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
    """FedAvg of changes that are cut to a length.

        D_k = w_k - w
        w <- w + sum_k (n_k / N) D_k / max(1, |D_k| / M)

    At the coordinator only. A site moves the weights by (n_k / N) M at most; it still chooses the direction.

    Args:
        bound: M, for the whole network; null takes `times` the median length of this round's changes.
        times: see `bound`; above 0.
        site_weights: "examples" (n_k / N, as FedAvg), or "uniform", where what sites say of their images is not to be
            trusted: clipping limits the length of a change, not its weight.

    The paper takes M as known. With a median, half of the sites are cut in every round where `times` is 1; of one site
    nothing is cut. BatchNorm's statistics have units of their own and are cut by themselves, to `times` their median
    length, as an update could else pass through them; the paper's networks have none. Its counters are the largest.
    Where nothing is cut, as with a large `bound` and `times`, it is FedAvg, to the bit. The paper also adds Gaussian
    noise to the result, which we leave out.
    """

    bound: PositiveFloat | None = None
    times: PositiveFloat = 1.0
    site_weights: SiteWeights = "examples"

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """The old weights plus the average of the clipped changes."""
        ends, shares = [update.weights for update in updates.values()], self.averaging_weights(updates)
        return clipped_average(state.weights, ends, shares, state.parameters, self.bound, self.times)
