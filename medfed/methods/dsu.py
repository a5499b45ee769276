"""DSU (Li et al., ICLR 2022): add noise to the feature statistics of images while the network trains.

X. Li, Y. Dai, Y. Ge, J. Liu, Y. Shan, L.-Y. Duan: "Uncertainty Modeling for Out-of-Distribution Generalization", ICLR
2022, https://arxiv.org/abs/2202.03958.

Idea: an image's channel statistics are uncertain outside the training domains. Each is drawn from a normal distribution
around its value, as wide as the statistic varies over the batch. Sites send the same messages as FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import nn

from medfed.core.bounds import NonNegativeFloat, Ratio
from medfed.federation.local_round import Architecture
from medfed.federation.method import ALL_DIMENSIONS, Method
from medfed.networks.parts import style_layers
from medfed.networks.parts.style_layers import Stages


@dataclass(frozen=True)
class DSU(Method):
    """FedAvg with layers that add noise to feature statistics in training (domain shifts with uncertainty).

    After each chosen stage, with a given probability per batch, for feature maps F (B, C, H, W) with means mu and
    standard deviations sigma, each (B, C), whose own standard deviations over the batch (of one client) are S_mu and
    S_sigma (C,):

        F' = gamma (F - mu) / sigma + beta                                                         (eq. 7)
        beta = mu + f e_1 S_mu,   gamma = sigma + f e_2 S_sigma,   e ~ N(0, 1)                     (eq. 5-6)

    Gradients pass through the statistics, unlike in MixStyle. gamma may be negative, which inverts the channel; paper
    and code do not prevent it, and neither do we. In evaluation, for a batch of one image, with probability 0 and with
    factor 0, the layers (`medfed.networks.parts.style_layers.DSU`) return their input.

    Volumes (ours): the positions of a channel are all voxels of the patch.

    Departures: paper and code have six positions: after the first convolution, after the max-pooling, and after stages
    1 to 4. The first two are not separate parts of our networks, so the preset "paper" has four positions. For a batch
    of one image the public code returns NaN.

    Args:
        stages: numbers of the encoder's stages after which noise is added, counted from 1. The paper uses all four. For
            other data the authors advise fewer positions.
        probability: probability that a stage adds noise to a batch, drawn for each batch and stage, in [0, 1]. 0.5 in
            the paper; for other data the authors advise about 0.2.
        factor: factor f on the standard deviation of the noise, at least 0. 1 in the paper.
    """

    stages: Stages = (1, 2)
    probability: Ratio = 0.5
    factor: NonNegativeFloat = 1.0

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {"stages": (1, 2, 3, 4)}}
    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """Insert a DSU layer after the chosen encoder stages."""
        layer = partial(style_layers.DSU, self.probability, self.factor)
        return style_layers.insert_after_stages(network, architecture.encoder_stages, self.stages, layer)
