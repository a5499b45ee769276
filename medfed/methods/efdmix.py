"""EFDMix (Zhang et al., CVPR 2022): mix the feature histograms of pairs of images while the network trains.

Y. Zhang, M. Li, R. Li, K. Jia, L. Zhang: "Exact Feature Distribution Matching for Arbitrary Style Transfer and Domain
Generalization", CVPR 2022, https://arxiv.org/abs/2203.07740.

Idea: as MixStyle, but with the whole distribution of values of each channel instead of its mean and standard deviation.
Sites send the same messages as FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import nn

from medfed.core.bounds import PositiveFloat, Ratio
from medfed.federation.local_round import Architecture
from medfed.federation.method import ALL_DIMENSIONS, Method
from medfed.networks.parts import style_layers
from medfed.networks.parts.style_layers import Stages


@dataclass(frozen=True)
class EFDMix(Method):
    """FedAvg with layers that mix the exact feature distributions of images in training.

    After each chosen stage, with a given probability per batch, for each channel of the feature maps (B, C, H, W) of
    image i and its partner j (the partners are a random permutation of the batch):

        r ~ Beta(c, c),   F_i'(x) = F_i(x) + (1 - r) (Y_j(rank_i(x)) - F_i(x))

    Y_j are the partner's values in ascending order, and rank_i(x) is the rank of F_i(x) among the values of image i.
    The last F_i(x) is a constant for the gradient, because ranks have no gradient; the partner's values keep theirs, as
    in the paper and its code. In evaluation, for a batch of one image, and with probability 0, the layers
    (`medfed.networks.parts.style_layers.EFDMix`) return their input.

    Equal values, as after a ReLU, are ranked in the order of their positions. Sorting costs O(HW log HW) per channel:
    on a CPU, a training step of a U-Net takes at least twice as long, one of a ResNet18 a third longer.

    Volumes (ours): the positions of a channel are all voxels of the patch.

    Departures: as in our MixStyle, the partner of an image is a random image of the same client. To share a histogram,
    a site would have to send all H W C values of a feature map.

    Args:
        stages: numbers of the encoder's stages after which distributions are mixed, counted from 1. The paper has 1 to
            3.
        probability: probability that a stage mixes the distributions of a batch, drawn for each batch and stage, in [0,
            1]. 0.5 in the paper.
        concentration: parameter c of the Beta distribution of the mixing ratio (alpha in the paper), above 0. 0.1 in
            the paper.
    """

    stages: Stages = (1, 2)
    probability: Ratio = 0.5
    concentration: PositiveFloat = 0.1

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {"stages": (1, 2, 3)}}
    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """Insert an EFDMix layer after the chosen encoder stages."""
        layer = partial(style_layers.EFDMix, self.probability, self.concentration)
        return style_layers.insert_after_stages(network, architecture.encoder_stages, self.stages, layer)
