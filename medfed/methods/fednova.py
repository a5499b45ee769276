"""FedNova (Wang et al., NeurIPS 2020): a hospital that takes more steps in a round does not pull further for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from medfed.federation.message import Message, State
from medfed.federation.method import Method, Tensors
from medfed.functional.aggregation import normalized_average


@dataclass(frozen=True)
class FedNova(Method):
    """Normalised averaging: each site's change is divided by how far its own steps reach, before it counts.

        w <- w + L sum_k p_k (w_k - w) / l_k,   L = sum_k p_k l_k,   p_k = n_k / N

    l_k is the number of steps t_k of site k or, for SGD with momentum m that starts from rest each round, the sum of
    the weights that its gradients get in the whole round, (t - m (1 - m^t) / (1 - m)) / (1 - m). Without it, sites
    with more images a round (and so more steps) move the weights towards their own optimum, by more than p_k says.

    At the coordinator only. BatchNorm's statistics are averaged. Equal numbers of steps are FedAvg, to the bit.

    Args:
        momentum: m in [0, 1): set it to `training.momentum` where `training.optimizer` is "sgd" and
            `training.optimizer_state` is "reset". A method is not told of the optimiser. A momentum that is kept over
            the rounds adds 1 / (1 - m) a step from the second round on, so its lengths are, nearly, the numbers of
            steps: leave it 0, and so with Adam, whose steps are about equally long; the paper's analysis does not
            cover it.

    L is of the l_k, as in the public code, and not of the numbers of steps, so that equal sites are FedAvg with
    momentum too.
    """

    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum}")

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        examples = torch.tensor([float(update.facts["examples"]) for update in updates.values()], dtype=torch.float64)
        lengths = torch.tensor([self.length(update.facts["steps"]) for update in updates.values()], dtype=torch.float64)
        ends = [update.weights for update in updates.values()]
        return normalized_average(state.weights, ends, examples / examples.sum(), lengths)

    def length(self, steps: int) -> float:
        """How far so many steps reach with equal gradients, in units of one plain step."""
        m = self.momentum
        return (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)
