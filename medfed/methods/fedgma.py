"""FedGMA (Tenison et al., TMLR 2023): where hospitals pull a weight in different directions, move it less.

I. Tenison, S. A. Sreeramadas, V. Mugunthan, E. Oyallon, I. Rish, E. Belilovsky: "Gradient Masked Averaging for
Federated Learning", TMLR 2023, https://arxiv.org/abs/2201.11986. Idea: shrink the average change of a weight where the
signs of the sites' changes disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from medfed.core.bounds import PositiveFloat, Ratio
from medfed.federation.message import Message, State
from medfed.federation.method import Method, SiteWeights, Tensors
from medfed.functional.aggregation import gradient_masked_average


@dataclass(frozen=True)
class FedGMA(Method):
    """Gradient masked averaging: the average change, masked element by element by how far the signs agree.

        D_k = w_k - w
        A = |mean_k sign(D_k)|,  mask = 1 where A >= tau, and A elsewhere
        w <- w + step * mask * sum_k (n_k / N) D_k

    At the coordinator only; sites do as in FedAvg. BatchNorm's statistics are averaged without a mask, as their change
    has no direction to agree on.

    Args:
        tau: in [0, 1]. 0 is FedAvg, to the bit.
        step: eta, the coordinator's step size, above 0.
        votes: a sign counts once a site ("uniform"), or as often as the site has images ("examples"). Only the vote:
            the change is weighed by images either way.

    Of three sites of equal vote that all moved a weight, A is 1 or 1/3, so any tau from above 1/3 to 1 does the same:
    two against one counts a third. Of few sites tau is a switch. (Where one site did not move, A is 2/3 or 0.)

    Votes count sites alike as in a public benchmark's code, which otherwise doubles changes that agree and drops,
    instead of shrinking, those that do not; we follow the paper there.
    """

    tau: Ratio = 0.4
    step: PositiveFloat = 1.0
    votes: SiteWeights = "uniform"

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """The old weights plus the masked average of the sites' changes."""
        ends = [update.weights for update in updates.values()]
        examples = torch.tensor([float(update.facts["examples"]) for update in updates.values()], dtype=torch.float64)
        votes = examples if self.votes == "examples" else torch.ones_like(examples)
        shares = self.averaging_weights(updates)
        return gradient_masked_average(state.weights, ends, shares, votes, state.parameters, self.tau, self.step)
