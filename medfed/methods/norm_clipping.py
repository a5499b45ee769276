"""Norm clipping (Sun et al., 2019): no hospital may move the weights further than the others do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from medfed.federation.message import Message, State
from medfed.federation.method import Method, Tensors
from medfed.functional.aggregation import clipped_average


@dataclass(frozen=True)
class NormClipping(Method):
    """FedAvg of changes that are cut to a length ("Can You Really Backdoor Federated Learning?").

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

    bound: float | None = None
    times: float = 1.0
    site_weights: str = "examples"

    def __post_init__(self) -> None:
        if self.bound is not None and not self.bound > 0:
            raise ValueError(f"bound must be above 0, or null, got {self.bound}")
        if not self.times > 0:
            raise ValueError(f"times must be above 0, got {self.times}")
        if self.site_weights not in ("examples", "uniform"):
            raise ValueError(f"site_weights must be 'examples' or 'uniform', got '{self.site_weights}'")

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        votes = [float(u.facts["examples"]) if self.site_weights == "examples" else 1.0 for u in updates.values()]
        shares = torch.tensor(votes, dtype=torch.float64)
        ends = [update.weights for update in updates.values()]
        return clipped_average(state.weights, ends, shares / shares.sum(), self.bound, self.times)
