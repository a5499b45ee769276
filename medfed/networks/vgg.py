"""VGG up to relu4_1 as a frozen encoder, and its mirror as decoder (Huang & Belongie, ICCV 2017).

MONAI and torchvision pad VGG with zeros and name its entries otherwise; style transfer needs reflection (zeros leave a
dark rim) and reads the published weights. Two forms are read:

- `vgg19`: the "normalised" VGG-19, keys `0.weight` ... `29.bias` as in the state dict of the public PyTorch port, with
  a leading 1x1 convolution that takes RGB in [0, 1]; modules after the 31st (relu4_1 is number 30) are left aside.
- `vgg16`: VGG-16, keys `conv0`, `conv1_1` ... `conv4_1`; `conv0` is a 1x1 convolution from RGB in [0, 1].

Nothing is downloaded. The weights of the public port (naoto0804/pytorch-AdaIN, MIT) are `vgg_normalised.pth` and
`decoder.pth` at https://github.com/naoto0804/pytorch-AdaIN/releases/tag/v0.0.0; their checksums are not known here, so
compare them with what their author tells you.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from medfed.core.errors import UserError

BLOCK_SIZES = {"vgg19": (2, 2, 4, 1), "vgg16": (2, 2, 3, 1)}  # convolutions in each block, up to relu4_1
WIDTHS = (64, 128, 256, 512)
DOWNSAMPLING = 8


class VGGEncoder(nn.Module):
    """Features of an image at relu1_1, relu2_1, relu3_1 and relu4_1 (64, 128, 256, 512 channels).

    Args:
        form: "vgg19" or "vgg16".
    """

    channels = WIDTHS
    downsampling = DOWNSAMPLING
    margin = 0

    def __init__(self, architecture: str = "vgg19") -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 3, 1)]
        self.level_indices: list[int] = []  # numbers of relu1_1 ... relu4_1 among the modules
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
        """images: (B, 3, H, W) in [0, 1]; returns the four maps, (B, 512, ceil(H/8), ceil(W/8)) last."""
        found = []
        for number, layer in enumerate(self.layers):
            images = layer(images)
            if number in self.level_indices:
                found.append(images)
        return found

    @torch.no_grad()
    def normalise_activations(self, images: Tensor) -> None:
        """Scale every convolution to a mean activation of 1 over these images (Gatys et al., CVPR 2016).

        ReLU and pooling pass a positive factor through, so the maps mean the same. Weights that work on intensities of
        0 to 255 have features in the hundreds otherwise, and no decoder learns from them.
        """
        total = 1.0
        for number, layer in enumerate(self.layers):
            followed = number + 1 < len(self.layers) and isinstance(self.layers[number + 1], nn.ReLU)
            if isinstance(layer, nn.Conv2d) and followed:
                bias = layer.get_parameter("bias")
                bias.div_(total)
                size = float(layer(images).relu().mean())
                layer.weight /= size
                bias.div_(size)
                total *= size
            images = layer(images)


class Decoder(nn.Module):
    """The mirror of a VGG encoder: relu4_1 features to RGB, not clamped.

    Nearest upsampling in place of pooling, reflection padding, no normalisation, no final activation; for `vgg19` the
    module numbers are those of the public `decoder.pth`.
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
        """(B, 512, h, w) to (B, 3, 8h, 8w)."""
        return self.layers(features)


def load_encoder(path: Path | str) -> VGGEncoder:
    """The encoder in a file of published weights; the keys tell which form it is.

    Raises:
        UserError: if the file is not a state dict of tensors, or the first entry that does not fit.
    """
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
    """The decoder in a file of published weights, with the errors of `load_encoder`."""
    decoder = Decoder(architecture)
    renamed = {name.removeprefix("layers."): name for name in decoder.state_dict()}
    load_renamed_weights(decoder, read_state_dict(Path(path)), renamed, Path(path))
    return decoder


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Tensors by name, of a `.safetensors` file or a `.pth` read without running any code in it."""
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        entries = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{path}: is missing; expected weights of VGG-19 or VGG-16 as .pth or .safetensors") from None
    except Exception as error:  # of the unpickler too, whose module is not imported here
        # Not PyTorch's own words: they advise to load the file in a way that runs code in it.
        raise UserError(f"{path}: cannot be read as a state dict ({type(error).__name__}); name a .safetensors, or a "
                        ".pt or .pth that holds tensors alone") from None
    if not isinstance(entries, Mapping) or not all(isinstance(entry, Tensor) for entry in entries.values()):
        raise UserError(f"{path}: holds no plain state dict; expected tensors by name, so save model.state_dict()")
    return dict(entries)


def load_renamed_weights(
    module: nn.Module, entries: Mapping[str, Tensor], renamed: Mapping[str, str], path: Path
) -> None:
    """Load entries under their own names; further entries are left aside.

    Args:
        renamed: the file's name of every entry that is needed, and the module's.

    Raises:
        UserError: with the first entry that is missing or has another shape, and how many were expected.
    """
    state = module.state_dict()
    for theirs, ours in renamed.items():
        expected = tuple(state[ours].shape)
        if theirs not in entries:
            near = ", ".join(list(entries)[:3]) or "nothing"
            raise UserError(f"{path}: has no entry '{theirs}'; expected {len(renamed)} entries, this one "
                            f"{expected}, and found {len(entries)} ({near}, ...); name another file")
        if tuple(entries[theirs].shape) != expected:
            raise UserError(f"{path}: entry '{theirs}' is {tuple(entries[theirs].shape)}; expected {expected} of "
                            f"{len(renamed)} entries; name another file")
    module.load_state_dict({ours: entries[theirs].to(torch.float32) for theirs, ours in renamed.items()})


def _convolution(width_in: int, width_out: int) -> list[nn.Module]:
    return [nn.ReflectionPad2d(1), nn.Conv2d(width_in, width_out, 3)]


def _vgg16_names() -> list[str]:
    blocks = enumerate(BLOCK_SIZES["vgg16"], start=1)
    return ["conv0", *(f"conv{block}_{index}" for block, count in blocks for index in range(1, count + 1))]
