"""The small style codec: an encoder and a decoder with 4x downsampling, so that small structures survive (VGG: 8x)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CHANNELS = (16, 32, 96, 128)
STRIDES = (1, 2, 2, 1)


class SmallEncoder(nn.Module):
    """Encoder with four 3x3 or 5x5 convolutions that returns feature maps at full, half, quarter and quarter size.

    Each map is taken after a convolution and a ReLU; the 5x5 convolutions halve the size.

    Args:
        channels: numbers of channels of the four maps. By default the last map has more numbers per position than the
            4 x 4 RGB pixels that the position stands for.

    Attributes:
        downsampling: how many pixels along a side one position of the last map stands for (4).
        margin: by how many positions of the last map an image is padded at the bottom and right (1), because halving
            an even size loses the last difference between pixels.
    """

    downsampling = 4
    margin = 1

    def __init__(self, channels: tuple[int, ...] = CHANNELS) -> None:
        super().__init__()
        widths = zip((3, *channels[:-1]), channels, STRIDES, strict=True)
        self.layers = nn.ModuleList(
            nn.Conv2d(before, after, 1 + 2 * stride, stride, padding=stride, padding_mode="reflect")
            for before, after, stride in widths
        )
        self.channels = tuple(channels)

    def convolutions(self) -> list[nn.Conv2d]:
        """Return the encoder's four convolutions in order. Each one, followed by a ReLU, gives one feature map."""
        return [layer for layer in self.layers if isinstance(layer, nn.Conv2d)]

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the four feature maps of images.

        Args:
            images: (B, 3, H, W) in [0, 1], H and W multiples of 4.

        Returns:
            Four maps: (B, C_1, H, W), (B, C_2, H / 2, W / 2), (B, C_3, H / 4, W / 4) and (B, C_4, H / 4, W / 4). C_i
            are the numbers of channels with which the encoder was built.
        """
        levels = []
        for layer in self.layers:
            images = layer(images).relu()
            levels.append(images)
        return levels

    @torch.no_grad()
    def normalise_activations(self, images: Tensor) -> list[Tensor]:
        """Scale the weights so that each channel of the four feature maps has root mean square 1 over the given images.

        The weights are changed in place. Every channel of a map is multiplied by a positive factor, and the next
        convolution divides by the same factor, so the maps are only scaled. A channel that is never active stays as it
        is.

        Args:
            images: (B, 3, H, W) in [0, 1], H and W multiples of 4: the images over which the mean is taken.

        Returns:
            Four tensors (C_i,): the factors of the channels of each map.
        """
        factors: list[Tensor] = []
        for layer, level in zip(self.convolutions(), self(images), strict=True):
            size = level.square().mean(dim=(0, 2, 3)).sqrt()
            factor = torch.where(size > 1e-4, 1 / size.clamp(min=1e-4), torch.ones_like(size))
            if factors:
                layer.weight /= factors[-1][None, :, None, None]
            layer.weight *= factor[:, None, None, None]
            get_bias(layer).mul_(factor)
            factors.append(factor)
        return factors


class SmallDecoder(nn.Module):
    """Mirror image of `SmallEncoder`: from features at quarter size to RGB images, not clamped.

    Sub-pixel convolutions (pixel shuffle) undo the strides; nearest-neighbour upsampling would blur the content of 4 x
    4 pixels. Padding repeats the edge value, which is what a reflected image has next to its border once it is halved.

    Args:
        channels: the four numbers of channels of the encoder.
    """

    def __init__(self, channels: tuple[int, ...] = CHANNELS) -> None:
        super().__init__()
        first, second, third, fourth = channels
        self.layers = nn.Sequential(
            _convolution(fourth, third),
            nn.ReLU(),
            _convolution(third, 4 * second),
            nn.PixelShuffle(2),
            nn.ReLU(),
            _convolution(second, 4 * first),
            nn.PixelShuffle(2),
            nn.ReLU(),
            _convolution(first, 3),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Decode feature maps to RGB images.

        Args:
            features: (B, C, h, w), the encoder's last feature maps, possibly with another style.

        Returns:
            (B, 3, 4h, 4w), approximately in [0, 1] but not clamped.
        """
        return self.layers(features)

    @torch.no_grad()
    def rescale_inputs(self, factors: Tensor) -> None:
        """Adapt the decoder to an encoder whose last feature map has been multiplied by one factor per channel.

        `SmallEncoder.normalise_activations` multiplies the feature maps. This method divides the weights of the
        decoder's first layer by the same factors, in place, so that the decoder returns the same images as before.

        Args:
            factors: (C,), above 0, one factor per channel: the last tensor that `normalise_activations` returned.
        """
        self.layers[0].get_parameter("weight").div_(factors[None, :, None, None])


def get_bias(layer: nn.Conv2d) -> nn.Parameter:
    """Return the bias parameter of a convolution, (out_channels,). It is the parameter itself, not a copy.

    Args:
        layer: a 2-D convolution that has a bias.

    Raises:
        AttributeError: if the convolution has no bias.
    """
    return layer.get_parameter("bias")


def _convolution(before: int, after: int) -> nn.Conv2d:
    """Return a 3x3 convolution that pads by repeating the edge."""
    return nn.Conv2d(before, after, 3, padding=1, padding_mode="replicate")
