"""A small U-Net for toy federations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from monai.networks.blocks.convolutions import Convolution
from monai.networks.layers.factories import Conv, Pool
from torch import Tensor, nn

from medfed.networks.parts.base import NetworkSettings

N_CHANNELS = (4, 4, 8)  # of the encoder's levels, the finest first


@dataclass(frozen=True)
class SmallUNet(NetworkSettings):
    """Settings of a U-Net with three levels and one convolution per level, whose training steps take milliseconds.

    Args:
        norm: normalisation after each convolution: "instance" (without running statistics) or "batch".
    """

    norm: Literal["instance", "batch"] = "instance"

    decoder_levels: ClassVar[tuple[str, ...]] = ("upcat_1", "upcat_2")
    encoder_stages: ClassVar[tuple[str, ...]] = ("conv_0", "down_1", "down_2")
    last_features: ClassVar[str] = "upcat_1"
    head: ClassVar[str] = "final_conv"

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        """Build the U-Net for images whose sides are multiples of 4."""
        return _SmallUNet(in_channels, out_channels, self.norm, self.dimensions)


class _SmallUNet(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, norm: str, dimensions: int) -> None:
        super().__init__()
        fine, middle, coarse = N_CHANNELS
        convolution = partial(Convolution, dimensions, act="LEAKYRELU", norm=(norm, {"affine": True}))
        pool = Pool[Pool.MAX, dimensions]
        self.conv_0 = convolution(in_channels, fine)
        self.down_1 = nn.Sequential(pool(2), convolution(fine, middle))
        self.down_2 = nn.Sequential(pool(2), convolution(middle, coarse))
        self.upsample = nn.Upsample(scale_factor=2)
        self.upcat_2 = convolution(coarse + middle, middle)
        self.upcat_1 = convolution(middle + fine, fine)
        self.final_conv = Conv[Conv.CONV, dimensions](fine, out_channels, 1)

    def forward(self, image: Tensor) -> Tensor:
        fine = self.conv_0(image)
        middle = self.down_1(fine)
        up = self.upcat_2(torch.cat([middle, self.upsample(self.down_2(middle))], dim=1))
        return self.final_conv(self.upcat_1(torch.cat([fine, self.upsample(up)], dim=1)))
