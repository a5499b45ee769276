"""U-Net of MONAI's blocks (BasicUNet), small and quick; its bundle needs MONAI alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from monai.networks.nets import BasicUNet
from torch import nn

from medfed.core.bounds import PositiveInt, RatioBelowOne
from medfed.networks.base import NetworkSettings


@dataclass(frozen=True)
class UNet(NetworkSettings):
    """MONAI's BasicUNet in two dimensions: five levels, two convolutions each, skip connections.

    Args:
        features: channels of the five encoder levels, and of the last decoder level.
        norm: "instance" (no running statistics, the default) or "batch".
        dropout: probability in [0, 1).
    """

    features: tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt, PositiveInt, PositiveInt] = (
        32, 32, 64, 128, 256, 32,
    )  # fmt: skip
    norm: Literal["instance", "batch"] = "instance"
    dropout: RatioBelowOne = 0.0

    decoder_levels: ClassVar[tuple[str, ...]] = ("upcat_1", "upcat_2", "upcat_3", "upcat_4")
    encoder_stages: ClassVar[tuple[str, ...]] = ("conv_0", "down_1", "down_2", "down_3", "down_4")
    last_features: ClassVar[str] = "upcat_1"
    head: ClassVar[str] = "final_conv"

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        """(B, in_channels, H, W) to logits (B, out_channels, H, W); H and W best multiples of 16."""
        return BasicUNet(**self._arguments(in_channels, out_channels))

    def network_def(self, in_channels: int, out_channels: int) -> dict[str, Any]:
        """As a bundle's `network_def`."""
        arguments = self._arguments(in_channels, out_channels)
        arguments["norm"] = list(arguments["norm"])
        return {"_target_": "monai.networks.nets.BasicUNet", **arguments, "features": list(self.features)}

    def _arguments(self, in_channels: int, out_channels: int) -> dict[str, Any]:
        return {
            "spatial_dims": 2,
            "in_channels": in_channels,
            "out_channels": out_channels,
            "features": tuple(self.features),
            "norm": (self.norm, {"affine": True}),
            "dropout": self.dropout,
        }
