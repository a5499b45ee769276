"""The U-Net of the ELCFS experiments: 16 channels at the first level, instance normalisation without parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from monai.networks.blocks import Convolution
from torch import Tensor, nn

from medfed.core.bounds import PositiveInt
from medfed.networks.parts.base import NetworkSettings


@dataclass(frozen=True)
class ElcfsUNet(NetworkSettings):
    """Settings of the U-Net with which the ELCFS experiments were made.

    See Liu et al., "FedDG: Federated Domain Generalization on Medical Image Segmentation via Episodic Learning in
    Continuous Frequency Space", CVPR 2021, https://arxiv.org/abs/2103.06030. At width 16 with 1 input and 1 output
    channel it has 3,179,569 parameters. Each encoder level has three 3x3 convolutions, the first one without an
    activation, as in the authors' network; the decoder uses nearest-neighbour upsampling and a 1x1 convolution. Its
    last two levels have 2 and 4 times `width` channels. The normalisation has neither parameters nor running
    statistics, so FedBN equals FedAvg with this network.

    Args:
        width: number of channels of the first level; doubled at each of the four levels below.
    """

    width: PositiveInt = 16

    decoder_levels: ClassVar[tuple[str, ...]] = ("up_1", "up_2", "up_3", "up_4")
    encoder_stages: ClassVar[tuple[str, ...]] = ("down_1", "down_2", "down_3", "down_4", "down_5")
    last_features: ClassVar[str] = "up_1"
    head: ClassVar[str] = "head"

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        return _ElcfsUNet(in_channels, out_channels, self.width)


def _convolution(n_in: int, n_out: int, kernel_size: int = 3, act: str | None = "RELU") -> nn.Module:
    """A 2-D convolution with instance normalisation and, unless `act` is None, an activation."""
    return Convolution(2, n_in, n_out, kernel_size=kernel_size, norm="INSTANCE", act=act, adn_ordering="NA")


class _Down(nn.Sequential):
    def __init__(self, n_in: int, n_out: int, pool: bool = True) -> None:
        layers: list[nn.Module] = [nn.MaxPool2d(2)] if pool else []
        layers += [_convolution(n_in, n_out, act=None), _convolution(n_out, n_out), _convolution(n_out, n_out)]
        super().__init__(*layers)


class _Up(nn.Module):
    """One decoder level: (B, n, h, w), with `halve_first` (B, 2 n, h, w), and the encoder's map to (B, n, 2h, 2w)."""

    def __init__(self, n: int, halve_first: bool) -> None:
        super().__init__()
        self.reduce = _convolution(2 * n, n) if halve_first else nn.Identity()
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.project = _convolution(n, n // 2, kernel_size=1)
        self.fuse = _convolution(n, n)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.project(self.upsample(self.reduce(x)))
        return self.fuse(torch.cat([skip, x], dim=1))


class _ElcfsUNet(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, width: int) -> None:
        super().__init__()
        self.down_1 = _Down(in_channels, width, pool=False)
        self.down_2 = _Down(width, 2 * width)
        self.down_3 = _Down(2 * width, 4 * width)
        self.down_4 = _Down(4 * width, 8 * width)
        self.down_5 = _Down(8 * width, 16 * width)
        self.up_4 = _Up(16 * width, halve_first=False)
        self.up_3 = _Up(8 * width, halve_first=True)
        self.up_2 = _Up(4 * width, halve_first=True)
        self.up_1 = _Up(2 * width, halve_first=True)
        self.head = nn.Conv2d(2 * width, out_channels, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        d1 = self.down_1(x)
        d2 = self.down_2(d1)
        d3 = self.down_3(d2)
        d4 = self.down_4(d3)
        u4 = self.up_4(self.down_5(d4), d4)
        u3 = self.up_3(u4, d3)
        u2 = self.up_2(u3, d2)
        return self.head(self.up_1(u2, d1))
