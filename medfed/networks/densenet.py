"""MONAI's DenseNet for classification, DenseNet121 by default; its bundle needs only MONAI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import nn

from medfed.core.bounds import PositiveInt, RatioBelowOne
from medfed.core.errors import UserError
from medfed.networks.parts.monai_class import MonaiName, MonaiSettings


@dataclass(frozen=True)
class DenseNetwork(MonaiSettings):
    """Settings of MONAI's DenseNet in 2-D.

    See Huang et al., "Densely Connected Convolutional Networks", CVPR 2017, https://arxiv.org/abs/1608.06993. With 3
    channels, 2 classes and the default settings this is DenseNet121 with 6,955,906 parameters. `weights` may be a file
    of torchvision, old or new, whose networks expect images standardised by ImageNet's mean and standard deviation.

    Args:
        init_features: number of channels of the first convolution.
        growth_rate: number of channels that each layer adds.
        blocks: number of layers of each dense block.
        norm: "batch" for BatchNorm (the standard); "batch_statistics" for BatchNorm without weights and without running
            statistics, as in the public code of CCST and HarmoFL. With the latter, a prediction depends on the other
            images of its batch.
        dropout: probability of dropout after each layer, in [0, 1).
    """

    init_features: PositiveInt = 64
    growth_rate: PositiveInt = 32
    blocks: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (6, 12, 24, 16)
    norm: Literal["batch", "batch_statistics"] = "batch"
    dropout: RatioBelowOne = 0.0

    def monai_class(self) -> tuple[MonaiName, Mapping[str, Any]]:
        return "DenseNet", {
            "init_features": self.init_features,
            "growth_rate": self.growth_rate,
            "block_config": tuple(self.blocks),
            "dropout_prob": self.dropout,
        }

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        network = super().build(in_channels, out_channels)
        if self.norm == "batch_statistics":  # replaced afterwards: MONAI cannot initialise such a layer
            for path, norm in [item for item in network.named_modules() if isinstance(item[1], nn.BatchNorm2d)]:
                without_weights = nn.BatchNorm2d(norm.num_features, affine=False, track_running_stats=False)
                network.set_submodule(path, without_weights)
        return network

    def network_def(self, in_channels: int, out_channels: int) -> dict[str, Any] | None:
        """Return None if `norm` is "batch_statistics", which MONAI cannot build."""
        return None if self.norm == "batch_statistics" else super().network_def(in_channels, out_channels)

    def check_image_size(self, size: int) -> None:
        """Check that the last feature map has more than one pixel, which BatchNorm needs for a batch of one image."""
        smallest = 8 * 2 ** (len(self.blocks) - 1)
        if size < smallest:
            raise UserError(f"data.image_size is {size}, but this network needs at least {smallest} pixels per side")
