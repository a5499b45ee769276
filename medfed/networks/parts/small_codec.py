"""The small style codec: an encoder and a decoder with 4x downsampling, so that small structures survive (VGG: 8x).

The weights in `codec_small.safetensors` are constructed, not trained: the encoder is a wavelet transform and the
decoder is its inverse, exact except at the bottom and right border. The wavelet is the biorthogonal 5/3 wavelet of JPEG
2000 (Le Gall & Tabatabai, "Sub-band coding of digital images using symmetric short kernel filters and arithmetic coding
techniques", ICASSP 1988). Its inverse interpolates between neighbours, so AdaIN can scale the bands separately without
visible blocks (a Haar wavelet gives blocks). Two channels, relu(w) and relu(-w), carry each signal w, so the ReLUs lose
nothing. The four maps hold RGB in 6 colour directions, 3 opponent colours in 4 bands each, these 12 signals in 4 bands
each, and a copy of these 48 signals. The remaining channels are random filters that the decoder ignores. Each channel
is scaled to root mean square 1 over synthetic images.
"""

from __future__ import annotations

from torch import Tensor, nn

CHANNELS = (16, 32, 96, 128)
STRIDES = (1, 2, 2, 1)


class SmallEncoder(nn.Module):
    """Encoder with four 3x3 or 5x5 convolutions, each with a ReLU; the two 5x5 convolutions halve the size."""

    downsampling = 4  # pixels along a side for one position of the feature map
    margin = 1  # positions of padding at the bottom and right: halving an even size loses the last difference

    def __init__(self, channels: tuple[int, ...] = CHANNELS) -> None:
        super().__init__()
        widths = zip((3, *channels[:-1]), channels, STRIDES, strict=True)
        self.layers = nn.ModuleList(
            nn.Conv2d(before, after, 1 + 2 * stride, stride, padding=stride, padding_mode="reflect")
            for before, after, stride in widths
        )
        self.channels = tuple(channels)

    def forward(self, images: Tensor) -> Tensor:
        for layer in self.layers:
            images = layer(images).relu()
        return images


class SmallDecoder(nn.Module):
    """Mirror image of `SmallEncoder`: from features at quarter size to RGB images, not clamped.

    Sub-pixel convolutions (pixel shuffle) undo the strides; nearest-neighbour upsampling would blur the content of 4 x
    4 pixels. Padding repeats the edge value, which is what a reflected image has next to its border once it is halved.
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
        return self.layers(features)


def _convolution(before: int, after: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, padding=1, padding_mode="replicate")
