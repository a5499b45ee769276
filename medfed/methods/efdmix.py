"""EFDMix (Zhang et al., CVPR 2022): between the network's stages, give images some of each other's whole histograms.

Y. Zhang, M. Li, R. Li, K. Jia, L. Zhang: "Exact Feature Distribution Matching for Arbitrary Style Transfer and Domain
Generalization", CVPR 2022, https://arxiv.org/abs/2203.07740. Idea: mix the sorted values of two images' feature maps,
channel by channel, while the network trains.
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
class EFDMix(Method):
    """FedAvg on a network that mixes exact feature distributions while it trains; nothing beside the weights is shared.

    MixStyle with all moments in place of two. Behind each chosen stage, with its probability a batch, and for each
    channel of the maps (B, C, H, W) of image i and its partner j, a random permutation of the batch:

        r ~ Beta(c, c),   F_i'(x) = F_i(x) + (1 - r) (Y_j(rank_i(x)) - F_i(x))

    Y_j are the partner's numbers in rising order and rank_i(x) is the place of F_i(x) among its own. The last F_i is a
    constant to the gradient, so that sorting does not stop it; the partner's numbers have theirs, as in the paper and
    its code. In evaluation, for a batch of one image, and with probability 0 the layers return what they are given.

    Ties, as after a ReLU, keep the order in which they stand. Sorting costs O(HW log HW) a channel: on a
    CPU a step of a U-Net takes twice as long or more, of ResNet18 a third longer. Sharing a histogram
    would mean sharing all its H W C numbers, so partners are random within a client, as in our MixStyle.

    Args:
        stages: numbers of the encoder's stages, from 1; the paper has 1 to 3.
        probability: of mixing at a stage, drawn for each batch and stage.
        concentration: c.
    """

    stages: Stages = (1, 2)
    probability: Ratio = 0.5
    concentration: PositiveFloat = 0.1

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {"stages": (1, 2, 3)}}

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """The network with layers behind its stages, which have no weights; UserError for a stage that it lacks."""
        layer = partial(style_layers.EFDMix, self.probability, self.concentration)
        return style_layers.insert_after_stages(network, architecture.encoder_stages, self.stages, layer)
