"""MixStyle (Zhou et al., ICLR 2021): mix the feature statistics of pairs of images while the network trains.

K. Zhou, Y. Yang, Y. Qiao, T. Xiang: "Domain Generalization with MixStyle", ICLR 2021, https://arxiv.org/abs/2104.02008.

Idea: channel means and standard deviations of early feature maps describe the style of an image, such as its scanner.
Mixing them between images gives training images in new styles. Sites send the same messages as FedAvg.
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
class MixStyle(Method):
    """FedAvg with layers that mix feature statistics of images in training.

    After each chosen stage, with a given probability per batch, image i of the feature maps F (B, C, H, W) gets a mean
    and a standard deviation between its own and those of its partner j. The partners are a random permutation of the
    batch:

        r ~ Beta(c, c),   mean = r mean_i + (1 - r) mean_j,   std = r std_i + (1 - r) std_j        (eq. 5-6)
        F_i' = std (F_i - mean_i) / std_i + mean                                                   (eq. 7)

    The statistics are constants for the gradient. The variance is unbiased, and 1e-6 is added under the square root. In
    evaluation, for a batch of one image, and with probability 0, the layers
    (`medfed.networks.parts.style_layers.MixStyle`) return their input. Labels and masks stay as they are; in a U-Net,
    the decoder also receives mixed maps through its skip connections.

    Volumes (ours): the positions of a channel are all voxels of the patch.

    Departures: the paper pairs images of different domains, or at random. In a federation each client has one domain,
    so the partner of an image is a random image of the same client; styles of other clients would have to be shared.

    Args:
        stages: numbers of the encoder's stages after which styles are mixed, counted from 1. The default (1, 2) is that
            of CCST's comparison (after the first two blocks of a DenseNet). The paper has 1 to 3 for PACS and no layer
            after the last stage.
        probability: probability that a stage mixes the styles of a batch, drawn for each batch and stage, in [0, 1].
            0.5 in the paper.
        concentration: parameter c of the Beta distribution of the mixing ratio (alpha in the paper), above 0. 0.1 in
            the paper puts most ratios near 0 or 1.
    """

    stages: Stages = (1, 2)
    probability: Ratio = 0.5
    concentration: PositiveFloat = 0.1

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {"stages": (1, 2, 3)}}
    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """Insert a MixStyle layer after the chosen encoder stages."""
        layer = partial(style_layers.MixStyle, self.probability, self.concentration)
        return style_layers.insert_after_stages(network, architecture.encoder_stages, self.stages, layer)
