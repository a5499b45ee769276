"""The network and weights of a MONAI bundle as the start of a federation. The bundle is read as data; no code runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from monai.networks import nets
from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.networks.densenet import DenseNetwork
from medfed.networks.monai_network import DOWNLOADS, OWN_ARGUMENTS, MonaiClass, MonaiNetwork
from medfed.networks.parts.base import NetworkSettings
from medfed.networks.parts.bundle_config import NETWORKS, NetworkDefinition, plain_arguments, read_network_def
from medfed.networks.resnet import ARCHITECTURES, ResidualNetwork
from medfed.networks.unet import UNet

# Names of the arguments for input and output channels, which differ between MONAI's networks.
CHANNEL_ARGUMENTS = (("in_channels", "n_input_channels"), ("out_channels", "num_classes"))
WEIGHT_FILES = ("model.safetensors", "model.pt")

Arguments = Mapping[str, Any]


def _unet_settings(arguments: Arguments) -> Iterator[NetworkSettings]:
    """Yield the settings of medfed's UNet that build the network of these MONAI arguments."""
    norm = arguments["norm"]
    if not all(type(n) is int for n in arguments["features"]):
        raise ValueError(f"features must be whole numbers, got {arguments['features']}")
    name: Any = str(norm[0] if isinstance(norm, (list, tuple)) else norm).lower()
    yield UNet(tuple(arguments["features"]), name, arguments["dropout"])


def _densenet_settings(arguments: Arguments) -> Iterator[NetworkSettings]:
    """Yield the settings of medfed's DenseNet that build the network of these MONAI arguments."""
    layers = tuple(arguments["block_config"])
    dropout = arguments["dropout_prob"]
    yield DenseNetwork(arguments["init_features"], arguments["growth_rate"], layers, dropout=dropout)


def _resnet_settings(arguments: Arguments) -> Iterator[NetworkSettings]:
    """Yield settings of each depth, one of which may build MONAI's ResNet with these arguments."""
    yield from (ResidualNetwork(depth, arguments["block_inplanes"][0]) for depth in ARCHITECTURES)


# The networks that a bundle may name, with those of `MonaiClass`: of these, medfed knows the submodules that methods
# need.
BASE_CLASSES = {f"DenseNet{depth}": "DenseNet" for depth in (121, 169, 201, 264)}
SETTINGS_BUILDERS: dict[str, Callable[[Arguments], Iterator[NetworkSettings]]] = {
    "BasicUNet": _unet_settings,
    "DenseNet": _densenet_settings,
    "ResNet": _resnet_settings,
    **dict.fromkeys(BASE_CLASSES, _densenet_settings),
}


@dataclass(frozen=True)
class Bundle(NetworkSettings):
    """Settings that take the network and the pretrained weights from an unpacked MONAI bundle.

    The network is `network_def` in the bundle's configs/inference, train or evaluate, as JSON or YAML. It must be a 2-D
    network of MONAI that medfed knows, such as UNet or DenseNet121, with plain values or references to plain values as
    arguments: a bundle's config can run any code (`$...`, `_target_`), and medfed reads it without running anything.
    The weights are models/model.safetensors or models/model.pt, unless `weights` names another file.

    Args:
        path: the bundle's folder; a relative path is relative to the working directory.
    """

    path: str

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            _ = self.network_settings
        except UserError as error:
            raise ValueError(str(error)) from None

    @cached_property
    def network_settings(self) -> NetworkSettings:
        """The settings, such as `UNet`, that build exactly the network of `network_def` in the bundle's config."""
        definition = read_network_def(Path(self.path))
        place = f"{definition.file}: network_def"
        if definition.name in get_args(MonaiClass):
            arguments = {
                key: _with_tuples(value)
                for key, value in definition.arguments.items()
                if key not in (*OWN_ARGUMENTS, *DOWNLOADS)
            }
            try:
                return MonaiNetwork(definition.name, arguments)  # type: ignore[arg-type]
            except ValueError as error:
                raise UserError(f"{place}: {error}") from error
        if definition.name not in SETTINGS_BUILDERS:
            known = ", ".join((*SETTINGS_BUILDERS, *get_args(MonaiClass)))
            raise UserError(f"{place} is '{definition.target}'; expected one of {known} of {NETWORKS[:-1]}")
        expected, monai_class = _complete_arguments(definition), BASE_CLASSES.get(definition.name, definition.name)
        try:
            for settings in SETTINGS_BUILDERS[definition.name](expected):
                channels = (next(expected[name] for name in names if name in expected) for names in CHANNEL_ARGUMENTS)
                network = dict(settings.network_def(*channels) or {})
                network.pop("_target_", None)
                if _complete_arguments(replace(definition, name=monai_class, arguments=network)) == expected:
                    return settings
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise UserError(f"{place}: {error}; expected the arguments of {NETWORKS}{definition.name}") from error
        raise UserError(
            f"{place}: this {definition.name} has arguments that medfed does not set; expected "
            f"{_format_arguments(network)}"
        )

    @property
    def decoder_levels(self) -> tuple[str, ...]:
        return self.network_settings.decoder_levels

    @property
    def encoder_stages(self) -> tuple[str, ...]:
        return self.network_settings.encoder_stages

    @property
    def last_features(self) -> str:
        return self.network_settings.last_features

    @property
    def embedding(self) -> str:
        return self.network_settings.embedding

    @property
    def head(self) -> str:
        return self.network_settings.head

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        return self.network_settings.build(in_channels, out_channels)

    def network_def(self, in_channels: int, out_channels: int) -> dict[str, Any] | None:
        return self.network_settings.network_def(in_channels, out_channels)

    def monai_weights(self, network: nn.Module, in_channels: int, out_channels: int) -> dict[str, Tensor]:
        return self.network_settings.monai_weights(network, in_channels, out_channels)

    def weights_file(self) -> Path | None:
        """Return the file `weights`, else models/model.safetensors or model.pt in the bundle, else None."""
        if self.weights:
            return Path(self.weights)
        return next((file for name in WEIGHT_FILES if (file := Path(self.path) / "models" / name).is_file()), None)

    def load_pretrained(self, network: nn.Module) -> None:
        """Load the weights of the bundle into the network, in place; UserError if it has none."""
        file = self.weights_file()
        if file is None:
            files = " or ".join(f"models/{name}" for name in WEIGHT_FILES)
            raise UserError(f"{self.path}: has no {files} to start from; copy the bundle again, or set network.weights")
        replace(self.network_settings, weights=str(file)).load_pretrained(network)

    def without_weights(self) -> NetworkSettings:
        """Return settings that need no copy of the bundle."""
        return self.network_settings

    def translate_weight_name(self, name: str) -> str:
        return self.network_settings.translate_weight_name(name)

    def optional_modules(self) -> tuple[str, ...]:
        return self.network_settings.optional_modules()

    def check_image_size(self, size: int) -> None:
        self.network_settings.check_image_size(size)


def _complete_arguments(definition: NetworkDefinition) -> dict[str, Any]:
    """Return a network's arguments with MONAI's defaults added, as plain lists and lower-case strings."""
    try:
        arguments = plain_arguments(getattr(nets, definition.name), definition.arguments)
    except TypeError as error:
        raise UserError(
            f"{definition.file}: network_def: {error}; expected the arguments of {NETWORKS}{definition.name}"
        ) from error
    return {key: _normalise_value(value) for key, value in arguments.items()}


def _with_tuples(value: Any) -> Any:
    """Return a value with tuples instead of lists, as the settings that a config file gives."""
    if isinstance(value, Mapping):
        return {key: _with_tuples(entry) for key, entry in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, (list, tuple)) else value


def _normalise_value(value: Any) -> Any:
    """Turn tuples into lists and strings into lower case, also inside containers, so that values compare equal."""
    if isinstance(value, Mapping):
        return {key: _normalise_value(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_normalise_value(entry) for entry in value]
    return value.lower() if isinstance(value, str) else value


def _format_arguments(definition: Arguments) -> str:
    return ", ".join(f"{key}: {value}" for key, value in definition.items() if key != "_target_")
