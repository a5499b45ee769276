"""Layers without weights that disturb the style of feature maps while a network trains: MixStyle, DSU and EFDMix.

Each acts on a batch with its probability, and else, and in evaluation, returns its very input. They draw from PyTorch's
own generator of the CPU, as dropout does, whatever the device. Partners are random: in a federation a client has one
domain, so that nothing tells which images of a batch differ in style.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from medfed.core.bounds import PositiveInt, distinct
from medfed.core.errors import UserError
from medfed.functional.feature_style import add_style_noise, mix_styles
from medfed.functional.histogram_matching import mix_histograms
from medfed.functional.hooks import insert_layer
from medfed.functional.sampling import draw_mixing_partners

Stages = Annotated[  # numbers of the network's stages, counted from 1
    tuple[PositiveInt, ...], Field(min_length=1, json_schema_extra={"uniqueItems": True}), AfterValidator(distinct)
]


class StyleLayer(nn.Module):
    """Maps (B, C, H, W) to the same; a subclass says in `change_style` how. One image alone stays as it is.

    Args:
        probability: of acting on a batch, in [0, 1]. At 0 nothing is drawn, so that dropout draws what it always does.
    """

    def __init__(self, probability: float = 0.5) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, features: Tensor) -> Tensor:
        if not self.training or self.probability == 0 or len(features) < 2:
            return features
        if float(torch.rand(())) >= self.probability:
            return features
        return self.change_style(features, torch.default_generator)

    def change_style(self, features: Tensor, rng: torch.Generator) -> Tensor:
        raise TypeError(f"{type(self).__name__} must say how it changes features")


class MixStyle(StyleLayer):
    """Mean and deviation of each channel mixed with those of another image (`feature_style.mixed`)."""

    def __init__(self, probability: float = 0.5, concentration: float = 0.1) -> None:
        super().__init__(probability)
        self.concentration = concentration

    def change_style(self, features: Tensor, rng: torch.Generator) -> Tensor:
        return mix_styles(features, *draw_mixing_partners(len(features), self.concentration, rng))


class EFDMix(MixStyle):
    """The whole histogram of each channel mixed with that of another image (`histogram_matching.histogram_mixed`)."""

    def change_style(self, features: Tensor, rng: torch.Generator) -> Tensor:
        return mix_histograms(features, *draw_mixing_partners(len(features), self.concentration, rng))


class DSU(StyleLayer):
    """Mean and deviation of each channel drawn around the own ones (`style_noise.style_noised`)."""

    def __init__(self, probability: float = 0.5, factor: float = 1.0) -> None:
        super().__init__(probability)
        self.factor = factor

    def change_style(self, features: Tensor, rng: torch.Generator) -> Tensor:
        return add_style_noise(features, rng, self.factor)


def insert_after_stages(
    network: nn.Module, seams: Sequence[str], stages: Sequence[int], layer: Callable[[], StyleLayer]
) -> nn.Module:
    """The network with a layer of its own behind each of the stages, counted from 1.

    Args:
        seams: paths of the modules that end its stages (`encoder_stages`).

    Raises:
        UserError: if it has not as many stages, or such a layer already.
    """
    if max(stages) > len(seams):
        raise UserError(
            f"method.stages: {list(stages)}, but this network has {len(seams)} stages; leave out the later ones"
        )
    for stage in sorted(stages):
        made = layer()
        name = f"{type(made).__name__.lower()}_{stage}"
        if hasattr(network, name):
            raise UserError(f"methods: {type(made).__name__} stands behind stage {stage} twice; name it once")
        insert_layer(network, seams[stage - 1], made, name)
    return network
