"""FedProx (Li et al., MLSys 2020): a site stays near the weights that it was given.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: "Federated Optimization in Heterogeneous Networks",
MLSys 2020, https://arxiv.org/abs/1812.06127. Idea: local training minimises the task's loss plus a penalty on the
distance to the weights with which the round started.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from medfed.core.bounds import NonNegativeFloat
from medfed.federation.local_round import LocalRound, Output
from medfed.federation.method import Method
from medfed.functional.weights import squared_distance


@dataclass(frozen=True)
class FedProx(Method):
    """FedAvg with a proximal term.

        L = L_task(w) + mu / 2 * |w - w_t|^2                                                   (eq. 2)

    over the trained parameters; BatchNorm's statistics are no weights and stay out of it. w_t is what the site starts
    the round from: the weights that it was sent and, where it keeps some to itself (FedBN), its own.

    Args:
        mu: weight of the proximal term. 0 is FedAvg, to the bit. The paper tunes it from 0.001 to 1; 0.01 is that of
            FedBN's and CCST's code, which leave the term out in a round's first step, where it is 0 anyway.

    With Adam, whose steps hardly depend on the size of a gradient, mu weighs less than with plain SGD. (A public
    benchmark adds norms that are not squared, whose gradient at w_t is not defined.)
    """

    mu: NonNegativeFloat = 0.01

    def regulariser(self, local: LocalRound, output: Output) -> Tensor:
        """The proximal term, mu / 2 * |w - w_t|^2."""
        return self.mu / 2 * squared_distance(local.trainable(), local.start_weights)  # eq. 2
