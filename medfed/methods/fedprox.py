"""FedProx (Li et al., MLSys 2020): penalise the distance between a site's weights and the global weights.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: "Federated Optimization in Heterogeneous Networks",
MLSys 2020, https://arxiv.org/abs/1812.06127.

Idea: a proximal term in the local loss keeps each site's weights close to the weights with which the round started.
Sites send the same messages as FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from medfed.core.bounds import NonNegativeFloat
from medfed.federation.local_round import LocalRound, Output
from medfed.federation.method import ALL_DIMENSIONS, Method
from medfed.functional.weights import squared_distance


@dataclass(frozen=True)
class FedProx(Method):
    """FedAvg with a proximal term in the local loss: the weights stay close to the weights at the start of the round.

        L = L_task(w) + mu / 2 * ||w - w_t||^2                                                     (eq. 2)

    The sum runs over the trained parameters. BatchNorm's running statistics are not parameters and are not included.
    w_t are the weights with which the site starts round t: the global weights, except for entries that stay at the site
    (`federation.batch_norm: local`), for which w_t is the site's own value.

    The size of Adam's steps hardly depends on the size of the gradient. With Adam the same mu therefore has less effect
    than with plain SGD.

    Departures: the term is computed in every step. The code of FedBN and CCST leaves it out in the first step of a
    round, where it is 0 in any case. A public benchmark adds norms that are not squared; their gradient at w_t is not
    defined.

    Args:
        mu: weight of the proximal term, at least 0. With 0 the result is bit-identical to FedAvg. The paper tunes it
            between 0.001 and 1; the default 0.01 is the value in the public code of FedBN and CCST.
    """

    mu: NonNegativeFloat = 0.01

    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS

    def regulariser(self, local: LocalRound, output: Output) -> Tensor:
        """Return the proximal term mu / 2 * ||w - w_t||^2."""
        return self.mu / 2 * squared_distance(local.trainable(), local.start_weights)  # eq. 2
