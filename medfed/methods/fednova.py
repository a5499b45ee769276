"""FedNova (Wang et al., NeurIPS 2020): normalise each site's change by the length of its local training.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor: "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020, https://arxiv.org/abs/2007.07481.

Idea: sites that take more steps in a round change the weights more. FedAvg then favours these sites by more than their
numbers of images justify. FedNova divides each site's change by its number of steps before averaging. Sites send the
same messages as FedAvg, in which the number of steps is a fact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from medfed.federation.message import Message, State
from medfed.federation.method import ALL_DIMENSIONS, Method, Tensors, site_fractions
from medfed.functional.weights import Weights, add_scaled_changes, average


@dataclass(frozen=True)
class FedNova(Method):
    """FedAvg that divides each site's change by the length of its local training (normalised averaging, section 4).

        w <- w + L sum_k p_k (w_k - w) / l_k,   L = sum_k p_k l_k,   p_k = n_k / N

    l_k is the length of site k's local training. For SGD without momentum it is the number of steps t_k. For SGD with
    momentum m that starts from zero in each round it is the sum of the weights that the gradients get in the round:

        l_k = (t_k - m (1 - m^t_k) / (1 - m)) / (1 - m)                                            (sec. 3.1)

    m is `training.momentum` if `training.optimizer` is "sgd" and `training.optimizer_state` is "reset", and 0
    otherwise. If the optimiser's state is kept, each step from the second round on adds about 1 / (1 - m), so the
    lengths are nearly proportional to the numbers of steps. The same holds for Adam, whose steps have about equal
    length; the paper's analysis does not cover Adam. Weight decay, or a proximal term in a stack, shortens l_k and is
    not taken into account.

    BatchNorm's statistics are averaged as in FedAvg. If all sites take the same number of steps, the result is
    bit-identical to FedAvg. FedNova has no settings.

    Departures: the average is scaled by the mean of the normalised lengths l_k, as in the public code, and not by the
    mean number of steps. Sites with equal numbers of steps then give FedAvg with momentum, too.
    """

    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """Add the average of the normalised changes, scaled by L, to the global weights (sec. 4, update rule)."""
        training = state.plan.training
        from_rest = training.optimizer == "sgd" and training.optimizer_state == "reset"
        momentum = training.momentum if from_rest else 0.0
        lengths = [effective_steps(update.facts["steps"], momentum) for update in updates.values()]  # sec. 3.1: l_k
        trained = [update.weights for update in updates.values()]
        fractions = site_fractions(updates, self.site_weights)  # p_k
        return normalized_average(
            state.weights, trained, fractions, torch.tensor(lengths, dtype=torch.float64), state.parameters
        )


def effective_steps(steps: float, momentum: float) -> float:
    """Return l_k: how far SGD moves if all gradients are equal, in units of one step without momentum."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def normalized_average(
    start: Weights, trained: Sequence[Weights], fractions: Tensor, lengths: Tensor, parameters: Set[str]
) -> Tensors:
    """Return w + L sum_k p_k (w_k - w) / l_k, with L = sum_k p_k l_k; entries that are not learned are averaged."""
    if bool((lengths == lengths[0]).all()):
        return average(trained, fractions)
    scales = (fractions * (fractions * lengths).sum() / lengths).tolist()
    merged = average(trained, fractions)
    for name in parameters & merged.keys():
        merged[name] = add_scaled_changes(start[name], [weights[name] for weights in trained], scales)
    return merged
