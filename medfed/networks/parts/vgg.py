"""VGG up to relu4_1 as a frozen encoder, and its mirror image as decoder, for style transfer (AdaIN).

See Huang & Belongie, "Arbitrary Style Transfer in Real-time with Adaptive Instance Normalization", ICCV 2017,
https://arxiv.org/abs/1703.06868. MONAI and torchvision pad VGG with zeros and use other entry names; style transfer
needs reflection padding (zeros leave a dark rim) and the published weights.

Nothing is downloaded. The weights of the public PyTorch port (naoto0804/pytorch-AdaIN, MIT) are `vgg_normalised.pth`
and `decoder.pth` at https://github.com/naoto0804/pytorch-AdaIN/releases/tag/v0.0.0. medfed does not know their
checksums. The modules here have the numbers of the public port's.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from medfed.networks.parts.pretrained import load_entries, read_state_dict

BLOCK_SIZES = (2, 2, 4, 1)  # convolutions of each block, up to relu4_1
WIDTHS = (64, 128, 256, 512)


class VGGEncoder(nn.Module):
    """The normalised VGG-19, from RGB images (B, 3, H, W) in [0, 1] to relu4_1, (B, 512, H / 8, W / 8), rounded up.

    It starts with a 1x1 convolution that normalises the colours.
    """

    channels = WIDTHS  # of the four blocks
    downsampling = 8  # pixels along a side for one position of the feature map
    margin = 0  # positions of the feature map by which an image is padded at the bottom and right

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 3, 1)]
        width_in = 3
        for block, (width, count) in enumerate(zip(WIDTHS, BLOCK_SIZES, strict=True)):
            if block:
                layers.append(nn.MaxPool2d(2, ceil_mode=True))
            for _ in range(count):
                layers += [*_convolution(width_in, width), nn.ReLU()]
                width_in = width
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class Decoder(nn.Module):
    """The mirror image of the VGG encoder: from relu4_1 features to RGB images, not clamped.

    Nearest-neighbour upsampling replaces pooling; there is no normalisation and no final activation.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for block in (3, 2, 1, 0):
            width, narrower = WIDTHS[block], WIDTHS[block - 1] if block else 3
            for _ in range(BLOCK_SIZES[block] - 1):
                layers += [*_convolution(width, width), nn.ReLU()]
            layers += _convolution(width, narrower)
            if block:
                layers += [nn.ReLU(), nn.Upsample(scale_factor=2, mode="nearest")]
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        return self.layers(features)


def load_published(module: VGGEncoder | Decoder, path: Path) -> None:
    """Load a published file of weights, whose entries after relu4_1 are ignored."""
    needed = module.state_dict()
    entries = {f"layers.{name}": entry for name, entry in read_state_dict(path).items()}
    load_entries(module, {name: entry for name, entry in entries.items() if name in needed}, str(path))


def _convolution(width_in: int, width_out: int) -> list[nn.Module]:
    """Return a 3x3 convolution with reflection padding, as two modules."""
    return [nn.ReflectionPad2d(1), nn.Conv2d(width_in, width_out, 3)]
