"""FedAvg (McMahan et al., AISTATS 2017): average the sites' weights in proportion to their numbers of images.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, https://arxiv.org/abs/1602.05629.

Idea: each site trains the global network on its own images for some steps, and the coordinator averages the results. In
every round, a site receives the weights and sends the weights and single numbers such as its mean loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from medfed.federation.method import ALL_DIMENSIONS, Method


@dataclass(frozen=True)
class FedAvg(Method):
    """Federated averaging: the new global weights are the average of the sites' weights after local training.

        w = sum_k (n_k / N) w_k                                                                    (Algorithm 1)

    n_k is the number of training images of site k, N their sum over the sites that took part in the round, and w_k the
    weights of site k after local training. Entries that are integers (BatchNorm's counters) take the maximum over the
    sites instead. All other methods build on this one: the code is in the base class `medfed.federation.method.Method`.
    FedAvg has no settings.
    """

    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS
