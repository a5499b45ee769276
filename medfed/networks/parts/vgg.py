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

import zipfile
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.core.files import check_checksums

BLOCK_SIZES = {"vgg19": (2, 2, 4, 1), "vgg16": (2, 2, 3, 1)}  # convolutions of each block, up to relu4_1
WIDTHS = (64, 128, 256, 512)
DOWNSAMPLING = 8


class VGGEncoder(nn.Module):
    """VGG encoder that returns the feature maps relu1_1, relu2_1, relu3_1 and relu4_1 of an image.

    Attributes:
        channels: numbers of channels of the four maps: 64, 128, 256 and 512.
        downsampling: how many pixels along a side one position of the last map stands for (8).
        margin: by how many positions of the last map an image is padded at the bottom and right (0).
        level_indices: positions of relu1_1 ... relu4_1 in `layers`.
    """

    channels = WIDTHS
    downsampling = DOWNSAMPLING
    margin = 0

    def __init__(self, architecture: str = "vgg19") -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 3, 1)]
        self.level_indices: list[int] = []
        width_in = 3
        for block, (width, count) in enumerate(zip(WIDTHS, BLOCK_SIZES[architecture], strict=True)):
            if block:
                layers.append(nn.MaxPool2d(2, ceil_mode=True))
            for index in range(count):
                layers += [*_convolution(width_in, width), nn.ReLU()]
                width_in = width
                if index == 0:
                    self.level_indices.append(len(layers) - 1)
        self.layers = nn.Sequential(*layers)
        self.architecture = architecture

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the four feature maps of RGB images (B, 3, H, W) in [0, 1], H and W at least 9.

        Their sides are H and W divided by 1, 2, 4 and 8, rounded up.
        """
        levels = []
        for number, layer in enumerate(self.layers):
            images = layer(images)
            if number in self.level_indices:
                levels.append(images)
        return levels


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
        """Decode relu4_1 features (B, 512, h, w) to RGB images (B, 3, 8h, 8w)."""
        return self.layers(features)


def load_encoder(path: Path | str) -> VGGEncoder:
    """Load published weights of a VGG-19 or a VGG-16, which the names of the entries in the file decide."""
    entries = read_state_dict(Path(path))
    encoder = VGGEncoder("vgg16" if "conv1_1.weight" in entries else "vgg19")
    numbers = [number for number, layer in enumerate(encoder.layers) if isinstance(layer, nn.Conv2d)]
    names = _vgg16_names() if encoder.architecture == "vgg16" else [str(number) for number in numbers]
    renamed = {
        f"{name}.{part}": f"layers.{number}.{part}"
        for name, number in zip(names, numbers, strict=True)
        for part in ("weight", "bias")
    }
    load_renamed_weights(encoder, entries, renamed, Path(path))
    return encoder


def load_decoder(path: Path | str, architecture: str = "vgg19") -> Decoder:
    """Load the weights of a decoder that was published with AdaIN."""
    decoder = Decoder(architecture)
    renamed = {name.removeprefix("layers."): name for name in decoder.state_dict()}
    load_renamed_weights(decoder, read_state_dict(Path(path)), renamed, Path(path))
    return decoder


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a state dict from `.safetensors`, `.pt` or `.pth` without running any code that the file may contain.

    A UserError is raised if the file is missing or damaged, or contains anything other than tensors by name.
    """
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        if zipfile.is_zipfile(path):  # and not the format of PyTorch before 1.6, which has no checksums
            with open(path, "rb") as file:
                check_checksums(file, str(path), "copy it again")
        entries = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{path}: not found; expected weights of VGG-19 or VGG-16 as .pth or .safetensors") from None
    except UserError:
        raise
    except Exception as error:  # includes the unpickler's errors, whose module is not imported here
        # PyTorch's own message is not shown: it advises to load the file in a way that runs code in it.
        raise UserError(
            f"{path}: cannot be read as a state dict ({type(error).__name__}); name a .safetensors, or a "
            ".pt or .pth that contains only tensors"
        ) from None
    if not isinstance(entries, Mapping) or not all(isinstance(entry, Tensor) for entry in entries.values()):
        raise UserError(f"{path}: is not a plain state dict; expected tensors by name, as model.state_dict() returns")
    return dict(entries)


def load_renamed_weights(
    module: nn.Module, entries: Mapping[str, Tensor], renamed: Mapping[str, str], path: Path
) -> None:
    """Set a module's weights from the entries of a file; `renamed` maps a name in the file to that in the module.

    Entries that `renamed` does not list are ignored. `path` is for error messages.
    """
    state = module.state_dict()
    for file_name, own_name in renamed.items():
        expected = tuple(state[own_name].shape)
        if file_name not in entries:
            examples = ", ".join(list(entries)[:3]) or "nothing"
            raise UserError(
                f"{path}: the entry '{file_name}' is missing; {len(renamed)} entries are needed, the "
                f"missing one with the shape {expected}, but the file has {len(entries)} entries "
                f"({examples}, ...); name another file"
            )
        if tuple(entries[file_name].shape) != expected:
            raise UserError(
                f"{path}: the entry '{file_name}' has the shape {tuple(entries[file_name].shape)}; "
                f"expected the shape {expected}, in a file with {len(renamed)} entries; name another file"
            )
    module.load_state_dict({own: entries[name].to(torch.float32) for name, own in renamed.items()})


def _convolution(width_in: int, width_out: int) -> list[nn.Module]:
    """Return a 3x3 convolution with reflection padding, as two modules."""
    return [nn.ReflectionPad2d(1), nn.Conv2d(width_in, width_out, 3)]


def _vgg16_names() -> list[str]:
    """Return the names of VGG-16's convolutions up to relu4_1 in published files, in order."""
    blocks = enumerate(BLOCK_SIZES["vgg16"], start=1)
    return ["conv0", *(f"conv{block}_{index}" for block, count in blocks for index in range(1, count + 1))]
