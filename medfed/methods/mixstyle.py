"""MixStyle (Zhou et al., ICLR 2021): between the network's stages, give images some of each other's style.

K. Zhou, Y. Yang, Y. Qiao, T. Xiang: "Domain Generalization with MixStyle", ICLR 2021, https://arxiv.org/abs/2104.02008.
Idea: mix the channel statistics of two images' feature maps while the network trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import nn

from medfed.core.bounds import PositiveFloat, Ratio
from medfed.federation.local_round import Architecture
from medfed.federation.method import Method
from medfed.networks import style_layers
from medfed.networks.style_layers import Stages


@dataclass(frozen=True)
class MixStyle(Method):
    """FedAvg on a network that mixes feature styles while it trains; nothing beside the weights is shared.

    Behind each chosen stage, with its probability a batch, image i of the maps F (B, C, H, W) gets mean and deviation
    between its own and those of a partner j, a random permutation of the batch:

        r ~ Beta(c, c),   mean = r mean_i + (1 - r) mean_j,   std = r std_i + (1 - r) std_j
        F_i' = std (F_i - mean_i) / std_i + mean

    Statistics are constants to the gradient, their variance is unbiased with 1e-6 under the root. In evaluation, for a
    batch of one image, and with probability 0 the layers return what they are given.

    The paper pairs images of different domains, or at random. In a federation each client has one domain, so partners
    are random and styles are mixed within a client; there is no other reading without sharing styles.

    Args:
        stages: numbers of the encoder's stages, from 1. The default is CCST's (behind the first two blocks of
            DenseNet); the paper has 1 to 3 for PACS, and no layer behind the last. With a U-Net the decoder sees mixed
            maps through its skips, too, and the masks stay as they are.
        probability: of mixing at a stage, drawn for each batch and stage.
        concentration: c; 0.1 puts most ratios near 0 or 1.
    """

    stages: Stages = (1, 2)
    probability: Ratio = 0.5
    concentration: PositiveFloat = 0.1

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {"stages": (1, 2, 3)}}

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """The network with layers behind its stages, which have no weights; UserError for a stage that it lacks."""
        layer = partial(style_layers.MixStyle, self.probability, self.concentration)
        return style_layers.insert_after_stages(network, architecture.encoder_stages, self.stages, layer)
