"""FedGMA (Tenison et al., TMLR 2023): reduce the average change of a weight where the sites' changes differ in sign.

I. Tenison, S. A. Sreeramadas, V. Mugunthan, E. Oyallon, I. Rish, E. Belilovsky: "Gradient Masked Averaging for
Federated Learning", TMLR 2023, https://arxiv.org/abs/2201.11986.

Idea: a change that all sites agree on belongs to what the sites have in common, so it is applied in full. A change
whose direction differs between sites is scaled down. Sites send the same messages as FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from medfed.core.bounds import PositiveFloat, Ratio
from medfed.federation.message import Message, State
from medfed.federation.method import ALL_DIMENSIONS, Method, SiteWeights, Tensors, site_fractions
from medfed.functional.weights import Weights, average


@dataclass(frozen=True)
class FedGMA(Method):
    """FedAvg that scales down the change of a weight if the sites' changes differ in sign (gradient masked averaging).

    With the change D_k = w_k - w of site k, for every single weight:

        A = |mean_k sign(D_k)|,  mask = 1 where A >= tau, and A elsewhere
        w <- w + step * mask * sum_k (n_k / N) D_k

    BatchNorm's statistics are averaged without a mask, because their changes have no direction on which sites could
    agree. With three sites of equal vote that all change a weight, A is either 1 or 1/3, so all values of `tau` above
    1/3 have the same effect. If one of the three does not change the weight, A is 2/3 or 0.

    Departures: a public benchmark doubles changes that agree, and drops those that do not instead of scaling them down;
    we follow the paper. As in that benchmark, every site has one vote by default.

    Args:
        tau: threshold of the agreement between the signs of the sites' changes (tau in the paper), in [0, 1]. Changes
            with at least this agreement are applied in full. With 0 the result is bit-identical to FedAvg. 0.4 is the
            value of a public benchmark.
        step: the coordinator's step size (eta in the paper), above 0. 1 applies the average change as it is.
        votes: weight of a site's sign in the agreement: "uniform" (one vote per site) or "examples" (in proportion to
            its number of images). The change itself is always weighted by the numbers of images.
    """

    tau: Ratio = 0.4
    step: PositiveFloat = 1.0
    votes: SiteWeights = "uniform"

    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """Add the masked average change to the global weights."""
        trained = [update.weights for update in updates.values()]
        examples = torch.tensor([float(update.facts["examples"]) for update in updates.values()], dtype=torch.float64)
        votes = examples if self.votes == "examples" else torch.ones_like(examples)
        fractions = site_fractions(updates, self.site_weights)  # n_k / N
        return gradient_masked_average(state.weights, trained, fractions, votes, state.parameters, self.tau, self.step)


def sign_agreement(changes: Sequence[Tensor], votes: Tensor) -> Tensor:
    """Return A = |sum_k v_k sign(change_k)| / sum_k v_k, element by element, in float64; `votes` v_k are (K,)."""
    total = torch.zeros(changes[0].shape, dtype=torch.float64)
    for change, vote in zip(changes, votes.tolist(), strict=True):
        total.add_(change.sign().to(torch.float64), alpha=vote)
    return total.abs() / float(votes.sum())


def gradient_masked_average(
    start: Weights,
    trained: Sequence[Weights],
    fractions: Tensor,
    votes: Tensor,
    parameters: Set[str],
    tau: float,
    step: float = 1.0,
) -> Tensors:
    """Return w + step * mask * sum_k p_k (w_k - w); where step * mask is 1, bit-identical to the plain average."""
    merged = average(trained, fractions)
    for name in parameters & merged.keys():
        entries = [weights[name] for weights in trained]
        before = start[name].to(torch.float64)
        mean = average([{name: entry.to(torch.float64)} for entry in entries], fractions)[name]
        agreement = sign_agreement([entry - start[name] for entry in entries], votes)
        factor = step * torch.where(agreement >= tau, 1.0, agreement)
        merged[name] = torch.where(factor == 1, mean, before + factor * (mean - before)).to(merged[name].dtype)
    return merged
