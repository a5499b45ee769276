"""MixStyle (Zhou et al., ICLR 2021): between the network's stages, give images some of each other's style."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from medfed.federation.local_round import Architecture
from medfed.federation.method import Method
from medfed.networks import style_layers


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

    stages: tuple[int, ...] = (1, 2)
    probability: float = 0.5
    concentration: float = 0.1

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {"stages": (1, 2, 3)}}

    def __post_init__(self) -> None:
        style_layers.check_stages(self.stages, self.probability)
        if not self.concentration > 0:
            raise ValueError(f"concentration must be above 0, got {self.concentration}")

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """The network with layers behind its stages, which have no weights; UserError for a stage that it lacks."""
        return style_layers.put_in(
            network,
            architecture.encoder_stages,
            self.stages,
            lambda: style_layers.MixStyle(self.probability, self.concentration),
        )
