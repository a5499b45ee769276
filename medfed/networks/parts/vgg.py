"""VGG up to relu4_1 as a frozen encoder, and its mirror image as decoder, for style transfer (AdaIN).

See Huang & Belongie, "Arbitrary Style Transfer in Real-time with Adaptive Instance Normalization", ICCV 2017,
https://arxiv.org/abs/1703.06868. MONAI and torchvision pad VGG with zeros and use other entry names; style transfer
needs reflection padding (zeros leave a dark rim) and the published weights. Two architectures can be read:

- `vgg19`: the normalised VGG-19 with the entries `0.weight` ... `29.bias`, as in the state dict of the public PyTorch
  port. It starts with a 1x1 convolution that takes RGB in [0, 1]. Entries after relu4_1 (module 30) are ignored.
- `vgg16`: VGG-16 with the entries `conv0`, `conv1_1` ... `conv4_1`, where `conv0` is a 1x1 convolution that takes RGB
  in [0, 1].

Nothing is downloaded. The weights of the public port (naoto0804/pytorch-AdaIN, MIT) are `vgg_normalised.pth` and
`decoder.pth` at https://github.com/naoto0804/pytorch-AdaIN/releases/tag/v0.0.0. medfed does not know their checksums.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from medfed.networks.parts.pretrained import load_entries, read_state_dict

BLOCK_SIZES = {"vgg19": (2, 2, 4, 1), "vgg16": (2, 2, 3, 1)}  # convolutions of each block, up to relu4_1
WIDTHS = (64, 128, 256, 512)


class VGGEncoder(nn.Module):
    """VGG encoder from RGB images (B, 3, H, W) in [0, 1] to relu4_1, (B, 512, H / 8, W / 8), rounded up."""

    channels = WIDTHS  # of the four blocks
    downsampling = 8  # pixels along a side for one position of the feature map
    margin = 0  # positions of the feature map by which an image is padded at the bottom and right

    def __init__(self, architecture: str = "vgg19") -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 3, 1)]
        width_in = 3
        for block, (width, count) in enumerate(zip(WIDTHS, BLOCK_SIZES[architecture], strict=True)):
            if block:
                layers.append(nn.MaxPool2d(2, ceil_mode=True))
            for _ in range(count):
                layers += [*_convolution(width_in, width), nn.ReLU()]
                width_in = width
        self.layers = nn.Sequential(*layers)
        self.architecture = architecture

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class Decoder(nn.Module):
    """The mirror image of a VGG encoder: from relu4_1 features to RGB images, not clamped.

    Nearest-neighbour upsampling replaces pooling; padding is by reflection; there is no normalisation and no final
    activation. For `vgg19` the module numbers are those of the public `decoder.pth`.
    """

    def __init__(self, architecture: str = "vgg19") -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for block in (3, 2, 1, 0):
            width, narrower = WIDTHS[block], WIDTHS[block - 1] if block else 3
            for _ in range(BLOCK_SIZES[architecture][block] - 1):
                layers += [*_convolution(width, width), nn.ReLU()]
            layers += _convolution(width, narrower)
            if block:
                layers += [nn.ReLU(), nn.Upsample(scale_factor=2, mode="nearest")]
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        return self.layers(features)


def load_encoder(path: Path | str) -> VGGEncoder:
    """Load published weights of a VGG-19 or a VGG-16, which the names of the entries in the file decide."""
    entries = read_state_dict(Path(path))
    encoder = VGGEncoder("vgg16" if "conv1_1.weight" in entries else "vgg19")
    numbers = [number for number, layer in enumerate(encoder.layers) if isinstance(layer, nn.Conv2d)]
    names = _vgg16_names() if encoder.architecture == "vgg16" else [str(number) for number in numbers]
    renamed = {
        f"layers.{number}.{part}": entries[f"{name}.{part}"]
        for name, number in zip(names, numbers, strict=True)
        for part in ("weight", "bias")
        if f"{name}.{part}" in entries
    }
    load_entries(encoder, renamed, str(path))
    return encoder


def load_decoder(path: Path | str, architecture: str = "vgg19") -> Decoder:
    """Load the weights of a decoder that was published with AdaIN."""
    decoder = Decoder(architecture)
    entries = {f"layers.{name}": entry for name, entry in read_state_dict(Path(path)).items()}
    needed = decoder.state_dict()
    load_entries(decoder, {name: entry for name, entry in entries.items() if name in needed}, str(path))
    return decoder


def _convolution(width_in: int, width_out: int) -> list[nn.Module]:
    """Return a 3x3 convolution with reflection padding, as two modules."""
    return [nn.ReflectionPad2d(1), nn.Conv2d(width_in, width_out, 3)]


def _vgg16_names() -> list[str]:
    """Return the names of VGG-16's convolutions up to relu4_1 in published files, in order."""
    blocks = enumerate(BLOCK_SIZES["vgg16"], start=1)
    return ["conv0", *(f"conv{block}_{index}" for block, count in blocks for index in range(1, count + 1))]
