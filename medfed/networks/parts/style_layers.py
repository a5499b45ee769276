"""Layers without weights that change the style of feature maps at random during training: MixStyle, EFDMix and DSU.

A layer acts on a batch with a given probability. Otherwise, and in evaluation mode, it returns its input itself. Like
dropout, the layers draw from PyTorch's global CPU generator on any device. Mixing partners are random: a client of a
federation has one domain, so nothing says which images of a batch differ in style.
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
from medfed.functional.hooks import insert_layer
from medfed.functional.sampling import draw_mixing_partners

Stages = Annotated[  # numbers of a network's stages, counted from 1, all different
    tuple[PositiveInt, ...], Field(min_length=1, json_schema_extra={"uniqueItems": True}), AfterValidator(distinct)
]


class StyleLayer(nn.Module):
    """Base class of the style layers; a subclass overrides `change_style`.

    At probability 0 nothing is drawn, so other layers draw the same random numbers as without this layer.
    """

    def __init__(self, probability: float = 0.5) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, features: Tensor) -> Tensor:
        """In training, with the layer's probability, change the styles of (B, C, H, W); else return the input."""
        if not self.training or self.probability == 0 or len(features) < 2:
            return features
        if float(torch.rand(())) >= self.probability:
            return features
        return self.change_style(features, torch.default_generator)

    def change_style(self, features: Tensor, rng: torch.Generator) -> Tensor:
        """Return a copy of a batch of feature maps, (B, C, H, W) with B at least 2, with changed styles."""
        raise TypeError(f"{type(self).__name__} must override change_style(features, rng)")


class MixStyle(StyleLayer):
    """Layer that mixes the mean and standard deviation of each channel with those of another image of the batch.

    See Zhou et al., "Domain Generalization with MixStyle", ICLR 2021, https://arxiv.org/abs/2104.02008, and
    `medfed.functional.feature_style.mix_styles`.

    Args:
        probability: probability in [0, 1] of acting on a batch in training.
        concentration: c of the Beta(c, c) distribution of the mixing ratios, above 0.
    """

    def __init__(self, probability: float = 0.5, concentration: float = 0.1) -> None:
        super().__init__(probability)
        self.concentration = concentration

    def change_style(self, features: Tensor, rng: torch.Generator) -> Tensor:
        return mix_styles(features, *draw_mixing_partners(len(features), self.concentration, rng))


class EFDMix(MixStyle):
    """Layer that mixes each channel's histogram with the histogram of this channel in another image of the batch.

    See Zhang et al., "Exact Feature Distribution Matching for Arbitrary Style Transfer and Domain Generalization", CVPR
    2022, https://arxiv.org/abs/2203.07740, and `mix_histograms`.

    Args:
        probability: probability in [0, 1] of acting on a batch in training.
        concentration: c of the Beta(c, c) distribution of the mixing ratios, above 0.
    """

    def change_style(self, features: Tensor, rng: torch.Generator) -> Tensor:
        return mix_histograms(features, *draw_mixing_partners(len(features), self.concentration, rng))


class DSU(StyleLayer):
    """Layer that replaces the mean and standard deviation of each channel by random values around them.

    See Li et al., "Uncertainty Modeling for Out-of-Distribution Generalization", ICLR 2022,
    https://arxiv.org/abs/2202.03958, and `medfed.functional.feature_style.add_style_noise`.

    Args:
        probability: probability in [0, 1] of acting on a batch in training.
        factor: multiplies the standard deviation of the random values, at least 0; 0 changes nothing.
    """

    def __init__(self, probability: float = 0.5, factor: float = 1.0) -> None:
        super().__init__(probability)
        self.factor = factor

    def change_style(self, features: Tensor, rng: torch.Generator) -> Tensor:
        return add_style_noise(features, rng, self.factor)


def insert_after_stages(
    network: nn.Module, stage_paths: Sequence[str], stages: Sequence[int], layer: Callable[[], StyleLayer]
) -> nn.Module:
    """Insert a new style layer after each of the given stages (from 1) of a network; no entry is renamed."""
    if max(stages) > len(stage_paths):
        raise UserError(
            f"method.stages: got {list(stages)}, but this network has only the stages 1 to {len(stage_paths)}; remove "
            "all other numbers"
        )
    for stage in sorted(stages):
        new_layer = layer()
        name = f"{type(new_layer).__name__.lower()}_{stage}"
        if hasattr(network, name):
            raise UserError(
                f"methods: {type(new_layer).__name__} is inserted after stage {stage} twice; list the method once"
            )
        insert_layer(network, stage_paths[stage - 1], new_layer, name)
    return network


def mix_histograms(features: Tensor, ratio: Tensor, partners: Tensor) -> Tensor:
    """Mix the histograms of each sample's channels with those of another sample of the batch (EFDMix).

        ratio * features + (1 - ratio) * (features matched to the partner's histograms)

    Matching replaces the r-th smallest value of a channel by the r-th smallest value of the partner's channel; equal
    values are ranked by their positions. `features` are (B, C, H, W) or (B, C, X, Y, Z), `ratio` is (B,) in [0, 1], and
    `partners` is (B,), a permutation of 0..B-1. The gradient passes unchanged to the sample, and times 1 - ratio to the
    partner.
    """
    if features.ndim not in (4, 5):
        raise ValueError(f"features must be (B, C, H, W) or (B, C, X, Y, Z), got {tuple(features.shape)}")
    if not tuple(ratio.shape) == tuple(partners.shape) == (len(features),):
        shapes = f"{tuple(ratio.shape)} and {tuple(partners.shape)}"
        raise ValueError(f"ratio and partners must be ({len(features)},), got {shapes}")
    if not bool(((ratio >= 0) & (ratio <= 1)).all()):
        raise ValueError(f"ratio must be in [0, 1], got {ratio.tolist()}")
    strength = (1 - ratio).to(features).reshape(-1, *[1] * (features.ndim - 1))
    own, style = features.detach().flatten(2), features[partners.to(features.device)].flatten(2)
    rank = own.argsort(dim=2, stable=True).argsort(dim=2, stable=True)
    change = style.sort(dim=2, stable=True).values.gather(2, rank) - own
    return features + strength * change.unflatten(2, features.shape[2:])
