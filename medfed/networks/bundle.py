"""The network and the weights of a MONAI bundle, to start a federation from: read as data, nothing in it runs."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from monai.networks import nets
from torch import nn

from medfed.core.errors import UserError
from medfed.networks.base import NetworkSettings
from medfed.networks.densenet import DenseNetwork
from medfed.networks.resnet import ARCHITECTURES, ResidualNetwork
from medfed.networks.unet import UNet

CONFIG_FILES = ("inference.json", "train.json", "evaluate.json")
CHANNEL_ARGUMENTS = (
    ("in_channels", "n_input_channels"),
    ("out_channels", "num_classes"),
)  # as MONAI's networks call them
WEIGHT_FILES = ("model.safetensors", "model.pt")

Arguments = Mapping[str, Any]


def _unet_settings(given: Arguments) -> Iterator[NetworkSettings]:
    norm = given["norm"]
    if not all(type(n) is int for n in given["features"]):
        raise ValueError(f"features are {given['features']}")
    name: Any = str(norm[0] if isinstance(norm, (list, tuple)) else norm).lower()
    yield UNet(tuple(given["features"]), name, given["dropout"])


def _densenet_settings(given: Arguments) -> Iterator[NetworkSettings]:
    layers = tuple(given["block_config"])
    yield DenseNetwork(given["init_features"], given["growth_rate"], layers, dropout=given["dropout_prob"])


def _resnet_settings(given: Arguments) -> Iterator[NetworkSettings]:
    yield from (ResidualNetwork(depth, given["block_inplanes"][0]) for depth in ARCHITECTURES)


# The networks that a bundle may name: those whose inner places methods know.
SETTINGS_BUILDERS: dict[str, Callable[[Arguments], Iterator[NetworkSettings]]] = {
    "BasicUNet": _unet_settings, "DenseNet": _densenet_settings, "ResNet": _resnet_settings,
}  # fmt: skip


@dataclass(frozen=True)
class Bundle(NetworkSettings):
    """The network that `network_def` of a bundle's config names, with the bundle's weights to start from.

    Only names on a list of ours are looked at (`KNOWN`), with plain values as arguments: a MONAI bundle's config can
    run any code (`$...`, `_target_`), and this reads it without doing so. `weights`, where given, are taken instead of
    `models/model.safetensors` or `models/model.pt`.

    Args:
        path: the bundle's folder; relative to the working directory.
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
        """The settings of ours that build the bundle's network.

        Raises:
            UserError: if the bundle has no such config, or names what is not on the list.
        """
        file, definition = self._definition()
        name = str(definition.get("_target_", "")).removeprefix("monai.networks.nets.")
        if name not in SETTINGS_BUILDERS:
            raise UserError(f"{file}: network_def is '{definition.get('_target_')}'; expected one of "
                            f"{', '.join(f'monai.networks.nets.{known}' for known in SETTINGS_BUILDERS)}")
        wanted = _complete_arguments(name, {key: value for key, value in definition.items() if key != "_target_"}, file)
        try:
            for settings in SETTINGS_BUILDERS[name](wanted):
                channels = (next(wanted[name] for name in names if name in wanted) for names in CHANNEL_ARGUMENTS)
                ours = settings.network_def(*channels) or {}
                if (
                    _complete_arguments(name, {key: value for key, value in ours.items() if key != "_target_"}, file)
                    == wanted
                ):
                    return settings
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise UserError(
                f"{file}: network_def: {error}; expected the arguments of monai.networks.nets.{name}"
            ) from error
        raise UserError(
            f"{file}: network_def: this {name} has arguments that medfed does not set; expected "
            f"{_format_arguments(ours)}"
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
        """As the network that was found does; `data` decides the channels."""
        return self.network_settings.build(in_channels, out_channels)

    def network_def(self, in_channels: int, out_channels: int) -> dict[str, Any] | None:
        """As a bundle's `network_def`: what the federation makes of a bundle goes back into one."""
        return self.network_settings.network_def(in_channels, out_channels)

    def weights_file(self) -> Path | None:
        """The bundle's weights, unless others are given."""
        if self.weights:
            return Path(self.weights)
        return next((file for name in WEIGHT_FILES if (file := Path(self.path) / "models" / name).is_file()), None)

    def load_pretrained(self, network: nn.Module) -> None:
        """Fill the network from the bundle."""
        file = self.weights_file()
        if file is None:
            raise UserError(f"{self.path}: has no models/{' or models/'.join(WEIGHT_FILES)} to start from")
        replace(self.network_settings, weights=str(file)).load_pretrained(network)

    def without_weights(self) -> NetworkSettings:
        """The network that was found: a site needs no bundle."""
        return self.network_settings

    def translate_weight_name(self, name: str) -> str:
        return self.network_settings.translate_weight_name(name)

    def optional_modules(self) -> tuple[str, ...]:
        return self.network_settings.optional_modules()

    def check_image_size(self, size: int) -> None:
        self.network_settings.check_image_size(size)

    def _definition(self) -> tuple[Path, dict[str, Any]]:
        """The first config that has a `network_def` of plain values."""
        folder = Path(self.path) / "configs"
        if not folder.is_dir():
            raise UserError(
                f"network.path: {self.path} is no MONAI bundle (no folder configs); name an unpacked bundle"
            )
        for file in (folder / name for name in CONFIG_FILES):
            if not file.is_file():
                continue
            try:
                found = json.loads(file.read_text(encoding="utf-8")).get("network_def")
            except (ValueError, AttributeError, RecursionError) as error:
                raise UserError(f"{file}: is no JSON object ({error}); copy the bundle again") from error
            if isinstance(found, dict):
                if strange := [key for key, value in found.items() if _is_expression(value)]:
                    raise UserError(f"{file}: network_def.{strange[0]} is an expression, and nothing in a bundle runs "
                                    "here; write the value in its place")
                return file, found
        raise UserError(
            f"{folder}: no {' or '.join(CONFIG_FILES)} with a network_def; the bundle must name its network so"
        )


def _complete_arguments(name: str, arguments: Arguments, file: Path) -> dict[str, Any]:
    """The arguments with MONAI's defaults for those that are missing, as plain lists and lower-case words."""
    target = getattr(nets, name)
    try:
        bound = inspect.signature(target).bind(**arguments)
    except TypeError as error:
        raise UserError(
            f"{file}: network_def: {error}; expected the arguments of monai.networks.nets.{name}"
        ) from error
    bound.apply_defaults()
    return {key: _normalise_value(value) for key, value in bound.arguments.items()}


def _normalise_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _normalise_value(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_normalise_value(one) for one in value]
    return value.lower() if isinstance(value, str) else value


def _is_expression(value: Any) -> bool:
    """Whether MONAI would evaluate it, look it up, or build something from it."""
    if isinstance(value, Mapping):
        return "_target_" in value or any(map(_is_expression, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_is_expression, value))
    return isinstance(value, str) and value.startswith(("$", "@", "%"))


def _format_arguments(definition: Arguments) -> str:
    return ", ".join(f"{key}: {value}" for key, value in definition.items() if key != "_target_")
