"""FedNova (Wang et al., NeurIPS 2020): a hospital that takes more steps in a round does not pull further for it.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor: "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020, https://arxiv.org/abs/2007.07481. Idea: divide each site's change by the length
of its local training before the average.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from medfed.federation.message import Message, State
from medfed.federation.method import Method, Tensors
from medfed.functional.aggregation import effective_steps, normalized_average


@dataclass(frozen=True)
class FedNova(Method):
    """Normalised averaging: each site's change is divided by how far its own steps reach, before it counts.

        w <- w + L sum_k p_k (w_k - w) / l_k,   L = sum_k p_k l_k,   p_k = n_k / N

    l_k is the number of steps t_k of site k or, for SGD with momentum m that starts from rest each round, the sum of
    the weights that its gradients get in the whole round, (t - m (1 - m^t) / (1 - m)) / (1 - m). Without it, sites
    with more images a round (and so more steps) move the weights towards their own optimum, by more than p_k says.

    m is `training.momentum` if `training.optimizer` is "sgd" and `training.optimizer_state` is "reset"; otherwise it is
    0: a momentum that is kept over the rounds adds 1 / (1 - m) a step from the second round on, so its lengths are,
    nearly, the numbers of steps, and so are those of Adam, whose steps are about equally long. The paper's analysis
    does not cover Adam.

    At the coordinator only. BatchNorm's statistics are averaged. Equal numbers of steps are FedAvg, to the bit.

    L is of the l_k, as in the public code, and not of the numbers of steps, so that equal sites are FedAvg with
    momentum too.
    """

    moved: ClassVar[Mapping[str, str]] = {"momentum": "FedNova reads training.momentum now; leave it out"}

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """The old weights plus the normalised average of the sites' changes."""
        training = state.plan.training
        from_rest = training.optimizer == "sgd" and training.optimizer_state == "reset"
        momentum = training.momentum if from_rest else 0.0
        lengths = [effective_steps(update.facts["steps"], momentum) for update in updates.values()]  # l_k
        return normalized_average(
            state.weights,
            [update.weights for update in updates.values()],
            self.averaging_weights(updates),
            torch.tensor(lengths, dtype=torch.float64),
            state.parameters,
        )
