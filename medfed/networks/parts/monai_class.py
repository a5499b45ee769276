"""A network of `monai.networks.nets` by name and arguments, with the places that methods use."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import torch
from monai.networks import nets
from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.functional.hooks import store_channels_last
from medfed.networks.parts.base import NetworkSettings, Places

Segmenter = Literal["UNet", "BasicUNet", "AttentionUnet", "SegResNet", "DynUNet", "FlexibleUNet", "SwinUNETR"]
DenseNetName = Literal["DenseNet", "DenseNet121", "DenseNet169", "DenseNet201", "DenseNet264"]
ResNetName = Literal["ResNet", "resnet10", "resnet18", "resnet34", "resnet50"]
MonaiName = Literal[Segmenter, DenseNetName, ResNetName, "SEResNet50"]
# Arguments that follow from the images and the task.
OWN_ARGUMENTS = ("spatial_dims", "in_channels", "n_input_channels", "out_channels", "num_classes")
DOWNLOADS = ("pretrained", "progress")  # arguments with which MONAI downloads weights
MAX_SIDE_SEARCHED = 1024


class Architecture(NamedTuple):
    """What medfed knows about a network of MONAI beyond its arguments."""

    places: Callable[[Any], Places]  # from a network
    inputs: str = "in_channels"  # the argument for the input channels
    outputs: str = "out_channels"
    channels_last: str = ""  # the layer from which feature maps are stored channels last
    weight_names: tuple[tuple[str, str], ...] = ()  # patterns of names in files of weights; what replaces them
    pads: bool = False  # whether the network pads its feature maps, so that it computes something for each size


@dataclass(frozen=True)
class MonaiSettings(NetworkSettings):
    """Base class of settings whose network is a class, or a function, of `monai.networks.nets` with arguments."""

    def monai_class(self) -> tuple[MonaiName, Mapping[str, Any]]:
        """The name in `monai.networks.nets`, and the arguments without those that set the channels and dimensions."""
        raise TypeError(f"{type(self).__name__} must override monai_class() to name its network")

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        name, arguments = self._all_arguments(in_channels, out_channels)
        network: nn.Module = getattr(nets, name)(**arguments)
        if isinstance(network, nets.DynUNet):  # `skip_layers` has all other layers a second time; its state needs none
            network.__dict__["skip_layers"] = network._modules.pop("skip_layers")  # which the forward pass reads
        if path := ARCHITECTURES[name].channels_last:
            store_channels_last(network, path)
        return network

    def network_def(self, in_channels: int, out_channels: int) -> dict[str, Any] | None:
        name, arguments = self._all_arguments(in_channels, out_channels)
        return {"_target_": f"monai.networks.nets.{name}", **json.loads(json.dumps(arguments))}  # lists, not tuples

    def monai_weights(self, network: nn.Module, in_channels: int, out_channels: int) -> dict[str, Tensor]:
        """MONAI's DynUNet has each weight twice, the second time under `skip_layers`."""
        name, arguments = self._all_arguments(in_channels, out_channels)
        if name != "DynUNet":
            return network.state_dict()
        complete = nets.DynUNet(**arguments)
        complete.load_state_dict(network.state_dict(), strict=False)
        return complete.state_dict()

    def translate_weight_name(self, name: str) -> str:
        """Translate torchvision's names; "" for the second names of DynUNet's weights."""
        for pattern, replacement in ARCHITECTURES[self.monai_class()[0]].weight_names:
            name = re.sub(pattern, replacement, name)
        return name

    def check_image_size(self, size: int) -> None:
        """Check the size by a forward pass without memory, or that a network that pads can halve it."""
        if self.dimensions == 3:
            raise UserError("network: is a 3-D network; set data.patch_size to train it on volumes")
        name = self.monai_class()[0]
        if ARCHITECTURES[name].pads:
            return super().check_image_size(size)
        network = self._without_memory(1, 3)
        if not self._accepts(network, (size, size)):
            sides = range(-(-size // 8) * 8, MAX_SIDE_SEARCHED, 8)
            fits = next((side for side in sides if self._accepts(network, (side, side))), 256)
            raise UserError(
                f"data.image_size is {size}, which this {name} cannot process; choose another size, for example {fits}"
            )

    def check_patch_size(self, size: tuple[int, int, int]) -> None:
        name = self.monai_class()[0]
        if self.dimensions == 2 or name not in get_args(Segmenter):
            return super().check_patch_size(size)
        network = self._without_memory(1, 3)
        if not self._accepts(network, size):
            fits = [max(16, round(side / 16) * 16) for side in size]
            raise UserError(
                f"data.patch_size is {list(size)}, which this {name} cannot process; choose another size, for example "
                f"{fits if self._accepts(network, fits) else [64, 64, 64]}"
            )

    @cached_property
    def _places(self) -> Places:
        """The paths of the submodules that methods use; ValueError if one is missing or if layers share weights."""
        network = self._without_memory(1, 1)
        shared = dict(network.named_parameters(remove_duplicate=False)).keys() - dict(network.named_parameters()).keys()
        if shared:
            raise ValueError(f"its layers share weights, such as '{min(shared)}', which cannot be averaged twice")
        places = ARCHITECTURES[self.monai_class()[0]].places(network)
        if places.head not in dict(network.named_modules()):
            raise ValueError(f"it has no last layer '{places.head}'")
        return places

    def _without_memory(self, in_channels: int, out_channels: int) -> nn.Module:
        """Build the network on PyTorch's device "meta", which needs no memory and draws no random numbers."""
        if self.monai_class()[0] == "SwinUNETR":  # MONAI reads numbers of tensors when it builds this network
            with torch.random.fork_rng(devices=[]):
                return self.build(in_channels, out_channels).to("meta")
        with torch.device("meta"):
            return self.build(in_channels, out_channels)

    def _accepts(self, network: nn.Module, size: Sequence[int]) -> bool:
        """Return whether a network with three outputs computes logits of the right shape from images of this size."""
        try:
            shape = network(torch.empty(1, 1, *size, device="meta")).shape
        except (RuntimeError, ValueError, AssertionError):  # sizes that do not fit, or one pixel for a normalisation
            return False
        return tuple(shape) == ((1, 3) if self.embedding else (1, 3, *size))

    def _all_arguments(self, in_channels: int, out_channels: int) -> tuple[MonaiName, dict[str, Any]]:
        """The name in `monai.networks.nets`, and all arguments."""
        name, arguments = self.monai_class()
        channels = {ARCHITECTURES[name].inputs: in_channels, ARCHITECTURES[name].outputs: out_channels}
        return name, {"spatial_dims": self.dimensions, **channels, **arguments}


def parameters(network: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of one of MONAI's networks; functions such as `resnet18` take those of `ResNet`."""
    return inspect.signature(nets.ResNet if inspect.isfunction(network) else network).parameters


def _numbered(path: str, numbers: Iterable[int]) -> tuple[str, ...]:
    """Paths such as "up_layers.1", "up_layers.0"."""
    return tuple(f"{path}{number}" for number in numbers)


def _unet(network: nn.Module) -> Places:
    """The levels of UNet and AttentionUnet are nested: encoder, layer with the next level as `submodule`, decoder."""
    stages: list[str] = []
    levels: list[str] = []
    path = "model"
    while hasattr(network.get_submodule(path), "1") and hasattr(network.get_submodule(f"{path}.1"), "submodule"):
        stages.append(f"{path}.0")
        levels.append(f"{path}.1")
        path = f"{path}.1.submodule"
    return Places((*stages, path), tuple(levels), "model.1", "model.2")


def _basic_unet(network: nn.Module) -> Places:
    stages = ("conv_0", *_numbered("down_", range(1, 5)))
    return Places(stages, _numbered("upcat_", range(1, 5)), "upcat_1", "final_conv")


def _segresnet(network: Any) -> Places:
    levels = _numbered("up_layers.", range(len(network.up_layers))[::-1])
    return Places(_numbered("down_layers.", range(len(network.down_layers))), levels, levels[0], "conv_final")


def _dynunet(network: Any) -> Places:
    levels = _numbered("upsamples.", range(len(network.upsamples))[::-1])
    stages = ("input_block", *_numbered("downsamples.", range(len(network.downsamples))), "bottleneck")
    return Places(stages, levels, levels[0], "output_block")


def _flexible_unet(network: Any) -> Places:
    if hasattr(network.encoder, "layer1"):
        stages: tuple[str, ...] = ("encoder.act", *_numbered("encoder.layer", range(1, 5)))
    else:
        stages = _numbered("encoder._blocks.", (0, 1, 2, 4, 6))  # the last before each halving, and the last one
    levels = _numbered("decoder.blocks.", range(len(network.decoder.blocks))[::-1])
    return Places(stages, levels, levels[0], "segmentation_head")


def _swin_unetr(network: nn.Module) -> Places:
    stages = ("swinViT.patch_embed", *(f"swinViT.layers{number}.0" for number in range(1, 5)))
    return Places(stages, _numbered("decoder", range(1, 6)), "decoder1", "out")


def _densenet(network: Any) -> Places:
    names = [name for name in dict(network.features.named_children()) if name.startswith("denseblock")]
    stages = tuple(f"features.{name}" for name in names)
    return Places(stages, (), "class_layers.relu", "class_layers.out", "class_layers.flatten")


def _resnet(network: nn.Module) -> Places:
    return Places(_numbered("layer", range(1, 5)), (), "layer4", "fc", "avgpool")


def _senet(network: nn.Module) -> Places:
    return Places(_numbered("layer", range(1, 5)), (), "layer4", "last_linear", "adaptive_avg_pool")


DENSENET = Architecture(
    _densenet,
    channels_last="features.conv0",
    weight_names=(  # torchvision's, whose older files have "denselayer1.norm.1"
        (r"(\.denselayer\d+)\.(norm|conv)\.?([12])\.", r"\1.layers.\2\3."),
        (r"^classifier\.", "class_layers.out."),
    ),
)
RESNET = Architecture(_resnet, inputs="n_input_channels", outputs="num_classes")
ARCHITECTURES: dict[MonaiName, Architecture] = {
    "UNet": Architecture(_unet),
    "BasicUNet": Architecture(_basic_unet, pads=True),
    "AttentionUnet": Architecture(_unet),
    "SegResNet": Architecture(_segresnet),
    "DynUNet": Architecture(_dynunet, weight_names=((r"^skip_layers\..*", ""),)),
    "FlexibleUNet": Architecture(_flexible_unet),
    "SwinUNETR": Architecture(_swin_unetr),
    "SEResNet50": Architecture(_senet, outputs="num_classes"),
    **dict.fromkeys(get_args(DenseNetName), DENSENET),
    **dict.fromkeys(get_args(ResNetName), RESNET),
}
