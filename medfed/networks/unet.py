"""MONAI's BasicUNet, a small and fast U-Net for segmentation; its bundle needs only MONAI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from monai.networks.nets import BasicUNet
from torch import nn

from medfed.core.bounds import PositiveInt, RatioBelowOne
from medfed.networks.parts.base import NetworkSettings


@dataclass(frozen=True)
class UNet(NetworkSettings):
    """Settings of MONAI's BasicUNet in 2-D: five levels with two convolutions each, and skip connections.

    Args:
        features: numbers of channels of the five encoder levels, the finest first, and of the last decoder level.
        norm: normalisation after each convolution: "instance" (without running statistics) or "batch".
        dropout: probability of dropout after each convolution, in [0, 1).
    """

    features: tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt, PositiveInt, PositiveInt] = (
        32,
        32,
        64,
        128,
        256,
        32,
    )
    norm: Literal["instance", "batch"] = "instance"
    dropout: RatioBelowOne = 0.0

    decoder_levels: ClassVar[tuple[str, ...]] = ("upcat_1", "upcat_2", "upcat_3", "upcat_4")
    encoder_stages: ClassVar[tuple[str, ...]] = ("conv_0", "down_1", "down_2", "down_3", "down_4")
    last_features: ClassVar[str] = "upcat_1"
    head: ClassVar[str] = "final_conv"

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        """Build the U-Net, which pads its feature maps unless H and W are multiples of 16."""
        return BasicUNet(**self._arguments(in_channels, out_channels))

    def network_def(self, in_channels: int, out_channels: int) -> dict[str, Any]:
        arguments = self._arguments(in_channels, out_channels)
        arguments["norm"] = list(arguments["norm"])
        return {"_target_": "monai.networks.nets.BasicUNet", **arguments, "features": list(self.features)}

    def _arguments(self, in_channels: int, out_channels: int) -> dict[str, Any]:
        """The arguments of MONAI's BasicUNet."""
        return {
            "spatial_dims": 2,
            "in_channels": in_channels,
            "out_channels": out_channels,
            "features": tuple(self.features),
            "norm": (self.norm, {"affine": True}),
            "dropout": self.dropout,
        }
