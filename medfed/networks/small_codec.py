"""A small encoder and decoder of style: 4x downsampling instead of VGG's 8x, so that small structures survive."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CHANNELS = (16, 32, 96, 128)
STRIDES = (1, 2, 2, 1)


class SmallEncoder(nn.Module):
    """Features of an image at full, half, quarter and again quarter size, each after a convolution and ReLU.

    The convolutions are 3x3, or 5x5 where they halve the size.

    Args:
        channels: of the four maps. The last has more numbers than the 4x4 pixels of RGB that it stands for.
    """

    downsampling = 4
    margin = 1  # cells reflected on, below and on the right, where halving an even size loses the last difference

    def __init__(self, channels: tuple[int, ...] = CHANNELS) -> None:
        super().__init__()
        widths = zip((3, *channels[:-1]), channels, STRIDES, strict=True)
        self.layers = nn.ModuleList(
            nn.Conv2d(before, after, 1 + 2 * stride, stride, padding=stride, padding_mode="reflect")
            for before, after, stride in widths
        )
        self.channels = tuple(channels)

    def convolutions(self) -> list[nn.Conv2d]:
        """One for each map."""
        return [layer for layer in self.layers if isinstance(layer, nn.Conv2d)]

    def forward(self, images: Tensor) -> list[Tensor]:
        """images: (B, 3, H, W) in [0, 1], H and W multiples of 4; returns the four maps, (B, C, H/4, W/4) last."""
        found = []
        for layer in self.layers:
            images = layer(images).relu()
            found.append(images)
        return found

    @torch.no_grad()
    def normalise_activations(self, images: Tensor) -> list[Tensor]:
        """Scale every channel to a root mean square of 1 over these images; the maps mean the same.

        ReLU passes a positive factor through, so the next convolution takes it back. A channel that never fires stays.
        The published VGG was scaled to a mean of 1; here that would blow up channels that fire rarely.

        Returns:
            The factor of each channel, a tensor a map.
        """
        factors: list[Tensor] = []
        for layer, found in zip(self.convolutions(), self(images), strict=True):
            size = found.square().mean(dim=(0, 2, 3)).sqrt()
            factor = torch.where(size > 1e-4, 1 / size.clamp(min=1e-4), torch.ones_like(size))
            if factors:
                layer.weight /= factors[-1][None, :, None, None]
            layer.weight *= factor[:, None, None, None]
            get_bias(layer).mul_(factor)
            factors.append(factor)
        return factors


class SmallDecoder(nn.Module):
    """The mirror of `SmallEncoder`: quarter size to RGB, not clamped.

    Subpixel convolutions (pixel shuffle) undo the strides: nearest upsampling blurs what 4x4 pixels hold.
    Padding is by the last value, which is what a reflected image has next to its border once it is halved.
    """

    def __init__(self, channels: tuple[int, ...] = CHANNELS) -> None:
        super().__init__()
        first, second, third, fourth = channels
        self.layers = nn.Sequential(
            _convolution(fourth, third), nn.ReLU(),
            _convolution(third, 4 * second), nn.PixelShuffle(2), nn.ReLU(),
            _convolution(second, 4 * first), nn.PixelShuffle(2), nn.ReLU(),
            _convolution(first, 3),
        )  # fmt: skip

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, h, w) to (B, 3, 4h, 4w)."""
        return self.layers(features)

    @torch.no_grad()
    def rescale_inputs(self, factors: Tensor) -> None:
        """Expect features that `SmallEncoder.normalise` scaled by these factors, (C,)."""
        self.layers[0].get_parameter("weight").div_(factors[None, :, None, None])


def get_bias(layer: nn.Conv2d) -> nn.Parameter:
    """The bias of a convolution that has one."""
    return layer.get_parameter("bias")


def _convolution(before: int, after: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, padding=1, padding_mode="replicate")
