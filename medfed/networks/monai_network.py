"""A network of MONAI by class and arguments: UNet, SegResNet, DynUNet, FlexibleUNet, SwinUNETR or SEResNet50, 2-D."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import torch
from monai.networks import nets
from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.networks.parts.base import NetworkSettings

MonaiClass = Literal["UNet", "SegResNet", "DynUNet", "FlexibleUNet", "SwinUNETR", "SEResNet50"]
EFFICIENTNET_STACKS = (0, 1, 2, 4, 6)  # the last stacks before the map is halved, and the last one
SKIP_LAYERS = "skip_layers."  # DynUNet's second name for the weights of all its other layers
OUTPUTS = {"SEResNet50": "num_classes"}  # argument for the output channels, if it is not `out_channels`
OWN_ARGUMENTS = ("spatial_dims", "in_channels", "out_channels", "num_classes")  # follow from the images and the task
DOWNLOADS = ("pretrained", "progress")  # arguments with which MONAI downloads weights
MAX_SIDE_SEARCHED = 1024


class Places(NamedTuple):
    """Dotted paths of the submodules that `NetworkSettings` names."""

    encoder_stages: tuple[str, ...]
    decoder_levels: tuple[str, ...]
    last_features: str
    head: str
    embedding: str = ""


@dataclass(frozen=True)
class MonaiNetwork(NetworkSettings):
    """Settings of a network of MONAI in 2-D, by its class and arguments, as in the `network_def` of a MONAI bundle.

    The finest features of MONAI's UNet, which methods such as ELCFS compare, have half the image's side if its first
    stride is 2. "SwinUNETR" needs the package einops. "SEResNet50" is for classification, all others for segmentation.

    Args:
        architecture: name of the class in `monai.networks.nets`.
        arguments: keyword arguments of this class, plain values only. The channels and `spatial_dims`, which is 2, must
            not be given, because they follow from the images and the task.

    Example:
        >>> import torch
        >>> settings = MonaiNetwork("UNet", {"channels": [8, 16, 32], "strides": [2, 2], "num_res_units": 2})
        >>> settings.build(in_channels=1, out_channels=2)(torch.rand(4, 1, 64, 64)).shape
        torch.Size([4, 2, 64, 64])
    """

    architecture: MonaiClass
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.arguments.items():
            if name in OWN_ARGUMENTS:
                raise ValueError(f"arguments.{name} follows from the images and the task; remove it")
            if name in DOWNLOADS:
                raise ValueError(f"arguments.{name} would download weights; remove it, and name a file with weights")
            if is_expression(value):
                raise ValueError(f"arguments.{name}: expected plain values, got {value!r}, which MONAI would evaluate")
        if self.arguments.get("deep_supervision"):
            raise ValueError("arguments.deep_supervision adds outputs that no method here uses; set it to false")
        if self.architecture == "SwinUNETR" and find_spec("einops") is None:
            raise ValueError("architecture: SwinUNETR needs the package einops; install it with pip install einops")
        try:
            _ = self._places
        except Exception as error:  # MONAI and PyTorch raise many types for wrong arguments
            line = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"arguments: MONAI cannot build this {self.architecture} ({line}); expected "
                f"{', '.join(self._argument_names())}"
            ) from error

    @property
    def encoder_stages(self) -> tuple[str, ...]:
        return self._places.encoder_stages

    @property
    def decoder_levels(self) -> tuple[str, ...]:
        return self._places.decoder_levels

    @property
    def last_features(self) -> str:
        return self._places.last_features

    @property
    def embedding(self) -> str:
        return self._places.embedding

    @property
    def head(self) -> str:
        return self._places.head

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        arguments = self._all_arguments(in_channels, out_channels)
        if self.architecture == "DynUNet":
            return _DynUNet(**arguments)
        network: nn.Module = getattr(nets, self.architecture)(**arguments)
        return network

    def network_def(self, in_channels: int, out_channels: int) -> dict[str, Any]:
        arguments = json.loads(json.dumps(self._all_arguments(in_channels, out_channels)))  # lists, not tuples
        return {"_target_": f"monai.networks.nets.{self.architecture}", **arguments}

    def monai_weights(self, network: nn.Module, in_channels: int, out_channels: int) -> dict[str, Tensor]:
        """MONAI's DynUNet has each weight twice, the second time under `skip_layers`."""
        if self.architecture != "DynUNet":
            return network.state_dict()
        complete = nets.DynUNet(**self._all_arguments(in_channels, out_channels))
        complete.load_state_dict(network.state_dict(), strict=False)
        return complete.state_dict()

    def translate_weight_name(self, name: str) -> str:
        """Return "" for the second names of DynUNet's weights."""
        return "" if self.architecture == "DynUNet" and name.startswith(SKIP_LAYERS) else name

    def check_image_size(self, size: int) -> None:
        """Check the size by a forward pass without memory."""
        if not self._accepts(size):
            sides = range(-(-size // 8) * 8, MAX_SIDE_SEARCHED, 8)
            fits = next((side for side in sides if self._accepts(side)), 256)
            raise UserError(
                f"data.image_size is {size}, which this {self.architecture} cannot process; choose another "
                f"size, for example {fits}"
            )

    def _without_memory(self, in_channels: int, out_channels: int) -> nn.Module:
        """Build the network on PyTorch's device "meta", which needs no memory and draws no random numbers."""
        if self.architecture == "SwinUNETR":  # MONAI reads numbers of tensors when it builds this network
            with torch.random.fork_rng(devices=[]):
                return self.build(in_channels, out_channels).to("meta")
        with torch.device("meta"):
            return self.build(in_channels, out_channels)

    @cached_property
    def _places(self) -> Places:
        """The paths of the submodules that methods use; ValueError if layers share weights."""
        network = self._without_memory(1, 1)
        shared = dict(network.named_parameters(remove_duplicate=False)).keys() - dict(network.named_parameters()).keys()
        if shared:
            raise ValueError(f"its layers share weights, such as '{min(shared)}', which cannot be averaged twice")
        return PLACES[self.architecture](network)

    def _accepts(self, size: int) -> bool:
        """Return whether the network computes logits of the right shape from square images of this size."""
        try:
            shape = self._without_memory(1, 3)(torch.empty(1, 1, size, size, device="meta")).shape
        except (RuntimeError, ValueError, AssertionError):  # sizes that do not fit, or one pixel for a normalisation
            return False
        return tuple(shape) == ((1, 3) if self.embedding else (1, 3, size, size))

    def _all_arguments(self, in_channels: int, out_channels: int) -> dict[str, Any]:
        """The arguments of MONAI's class, including the numbers of channels."""
        channels = {"in_channels": in_channels, OUTPUTS.get(self.architecture, "out_channels"): out_channels}
        return {"spatial_dims": 2, **channels, **self.arguments}

    def _argument_names(self) -> list[str]:
        """The arguments of MONAI's class that a config may set."""
        names = inspect.signature(getattr(nets, self.architecture)).parameters
        return [name for name in names if name not in (*OWN_ARGUMENTS, *DOWNLOADS, "kwargs")]


class _DynUNet(nets.DynUNet):
    """MONAI's DynUNet with each weight once, under one name."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        del self.skip_layers  # it holds all other layers a second time

    def forward(self, x: Tensor) -> Tensor:
        x = self.input_block(x)
        skips = [x]
        for layer in self.downsamples:
            x = layer(x)
            skips.append(x)
        x = self.bottleneck(x)
        for level, layer in enumerate(self.upsamples):
            x = layer(x, skips[len(skips) - 1 - level])
        return self.output_block(x)


def is_expression(value: Any) -> bool:
    """Return whether MONAI would evaluate a value of a config, look it up, or build an object from it."""
    if isinstance(value, Mapping):
        return any(str(key).startswith("_") for key in value) or any(map(is_expression, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(is_expression, value))
    return isinstance(value, str) and value.startswith(("$", "@", "%"))


def _numbered(path: str, numbers: Sequence[int]) -> tuple[str, ...]:
    """Paths such as "up_layers.1", "up_layers.0"."""
    return tuple(f"{path}.{number}" for number in numbers)


def _unet_places(network: nn.Module) -> Places:
    """Return the places of MONAI's UNet; its levels are nested: encoder, skip connection of the next level, decoder.

    A skip connection outputs the encoder's and the decoder's feature maps, which the next decoder layer reads.
    """
    path = "model"
    stages: list[str] = []
    levels: list[str] = []
    while isinstance(level := network.get_submodule(path), nn.Sequential) and len(level) == 3:
        stages.append(f"{path}.0")
        levels.append(f"{path}.1")
        path = f"{path}.1.submodule"
    return Places((*stages, path), tuple(levels), "model.1", "model.2")


def _segresnet_places(network: Any) -> Places:
    """Paths of the submodules of a SegResNet that methods use."""
    levels = _numbered("up_layers", range(len(network.up_layers))[::-1])
    return Places(_numbered("down_layers", range(len(network.down_layers))), levels, levels[0], "conv_final")


def _dynunet_places(network: Any) -> Places:
    """Paths of the submodules of a DynUNet that methods use."""
    levels = _numbered("upsamples", range(len(network.upsamples))[::-1])
    stages = ("input_block", *_numbered("downsamples", range(len(network.downsamples))), "bottleneck")
    return Places(stages, levels, levels[0], "output_block")


def _flexible_unet_places(network: Any) -> Places:
    """Paths of the submodules of a FlexibleUNet that methods use."""
    if hasattr(network.encoder, "layer1"):
        stages: tuple[str, ...] = ("encoder.act", *(f"encoder.layer{number}" for number in range(1, 5)))
    else:
        stages = _numbered("encoder._blocks", EFFICIENTNET_STACKS)
    levels = _numbered("decoder.blocks", range(len(network.decoder.blocks))[::-1])
    return Places(stages, levels, levels[0], "segmentation_head")


def _swin_places(network: Any) -> Places:
    """Paths of the submodules of a SwinUNETR that methods use."""
    stages = ("swinViT.patch_embed", *(f"swinViT.layers{number}.0" for number in range(1, 5)))
    return Places(stages, tuple(f"decoder{number}" for number in range(1, 6)), "decoder1", "out")


def _senet_places(network: Any) -> Places:
    """Paths of the submodules of an SENet that methods use."""
    stages = tuple(f"layer{number}" for number in range(1, 5))
    return Places(stages, (), "layer4", "last_linear", "adaptive_avg_pool")


PLACES: dict[str, Callable[[Any], Places]] = {
    "UNet": _unet_places,
    "SegResNet": _segresnet_places,
    "DynUNet": _dynunet_places,
    "FlexibleUNet": _flexible_unet_places,
    "SwinUNETR": _swin_places,
    "SEResNet50": _senet_places,
}
