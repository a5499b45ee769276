"""FedAvg (McMahan et al., AISTATS 2017): average the sites' weights, each in proportion to its images.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, https://arxiv.org/abs/1602.05629.
"""

from __future__ import annotations

from dataclasses import dataclass

from medfed.federation.method import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """w = sum_k (n_k / N) w_k. Everything else is built on this: see `medfed.federation.method.Method`."""
