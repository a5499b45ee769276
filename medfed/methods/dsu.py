"""DSU (Li et al., ICLR 2022): between the network's stages, take each image's style for a guess, and draw around it.

X. Li, Y. Dai, Y. Ge, J. Liu, Y. Shan, L.-Y. Duan: "Uncertainty Modeling for Out-of-Distribution Generalization", ICLR
2022, https://arxiv.org/abs/2202.03958. Idea: add Gaussian noise to the channel statistics of feature maps, as wide as
these statistics vary over the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import nn

from medfed.core.bounds import NonNegativeFloat, Ratio
from medfed.federation.local_round import Architecture
from medfed.federation.method import Method
from medfed.networks import style_layers
from medfed.networks.style_layers import Stages


@dataclass(frozen=True)
class DSU(Method):
    """Domain generalisation with uncertainty: FedAvg on a network that adds noise to feature styles while it trains.

    Behind each chosen stage, with its probability a batch, for maps F (B, C, H, W) with means mu and deviations sigma,
    each (B, C), whose own deviations over the batch are S_mu and S_sigma (C,):

        F' = gamma (F - mu) / sigma + beta,   beta = mu + f e_1 S_mu,   gamma = sigma + f e_2 S_sigma,   e ~ N(0, 1)

    Gradients pass through the statistics, unlike MixStyle's. gamma may come out negative, which mirrors the channel;
    neither paper nor code cuts it, and neither do we. A batch of one image has no spread (the code makes NaN of it) and
    stays as it is, as do all images in evaluation, with probability 0 and with factor 0. Nothing beside the weights is
    shared; the batch is a client's own, so the noise is as wide as the styles within one hospital.

    Paper and code have six places: behind the first convolution, the max-pool and stages 1 to 4. The first two are no
    seams here, so preset `paper` has four. For other data the author advises a probability of about 0.2 and fewer
    places.

    Args:
        stages: numbers of the encoder's stages, from 1.
        probability: of noise at a stage, drawn for each batch and stage.
        factor: f, of the spread; 1 in the paper.
    """

    stages: Stages = (1, 2)
    probability: Ratio = 0.5
    factor: NonNegativeFloat = 1.0

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {"stages": (1, 2, 3, 4)}}

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """The network with layers behind its stages, which have no weights; UserError for a stage that it lacks."""
        layer = partial(style_layers.DSU, self.probability, self.factor)
        return style_layers.insert_after_stages(network, architecture.encoder_stages, self.stages, layer)
