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
from medfed.networks.resnet import FORMS, ResidualNetwork
from medfed.networks.unet import UNet

CONFIGS = ("inference.json", "train.json", "evaluate.json")
CHANNELS = ("in_channels", "n_input_channels"), ("out_channels", "num_classes")  # as MONAI's networks call them
WEIGHTS = ("model.safetensors", "model.pt")

Arguments = Mapping[str, Any]


def _unets(given: Arguments) -> Iterator[NetworkSettings]:
    norm = given["norm"]
    if not all(type(n) is int for n in given["features"]):
        raise ValueError(f"features are {given['features']}")
    name = str(norm[0] if isinstance(norm, (list, tuple)) else norm).lower()
    yield UNet(tuple(given["features"]), name, given["dropout"])


def _densenets(given: Arguments) -> Iterator[NetworkSettings]:
    layers = tuple(given["block_config"])
    yield DenseNetwork(given["init_features"], given["growth_rate"], layers, dropout=given["dropout_prob"])


def _resnets(given: Arguments) -> Iterator[NetworkSettings]:
    yield from (ResidualNetwork(depth, given["block_inplanes"][0]) for depth in FORMS)


# The networks that a bundle may name: those whose inner places methods know.
KNOWN: dict[str, Callable[[Arguments], Iterator[NetworkSettings]]] = {
    "BasicUNet": _unets, "DenseNet": _densenets, "ResNet": _resnets,
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
            _ = self.found
        except UserError as error:
            raise ValueError(str(error)) from None

    @cached_property
    def found(self) -> NetworkSettings:
        """The settings of ours that build the bundle's network.

        Raises:
            UserError: if the bundle has no such config, or names what is not on the list.
        """
        file, definition = self._definition()
        name = str(definition.get("_target_", "")).removeprefix("monai.networks.nets.")
        if name not in KNOWN:
            raise UserError(f"{file}: network_def is '{definition.get('_target_')}'; expected one of "
                            f"{', '.join(f'monai.networks.nets.{known}' for known in KNOWN)}")
        wanted = _whole(name, {key: value for key, value in definition.items() if key != "_target_"}, file)
        try:
            for settings in KNOWN[name](wanted):
                channels = (next(wanted[name] for name in names if name in wanted) for names in CHANNELS)
                ours = settings.definition(*channels) or {}
                if _whole(name, {key: value for key, value in ours.items() if key != "_target_"}, file) == wanted:
                    return settings
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise UserError(
                f"{file}: network_def: {error}; expected the arguments of monai.networks.nets.{name}"
            ) from error
        raise UserError(
            f"{file}: network_def: this {name} has arguments that medfed does not set; expected {_whole_as_told(ours)}"
        )

    @property
    def decoder_levels(self) -> tuple[str, ...]:
        return self.found.decoder_levels

    @property
    def encoder_stages(self) -> tuple[str, ...]:
        return self.found.encoder_stages

    @property
    def last_features(self) -> str:
        return self.found.last_features

    @property
    def embedding(self) -> str:
        return self.found.embedding

    @property
    def head(self) -> str:
        return self.found.head

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        """As the network that was found does; `data` decides the channels."""
        return self.found.build(in_channels, out_channels)

    def definition(self, in_channels: int, out_channels: int) -> dict[str, Any] | None:
        """As a bundle's `network_def`: what the federation makes of a bundle goes back into one."""
        return self.found.definition(in_channels, out_channels)

    def weights_file(self) -> Path | None:
        """The bundle's weights, unless others are given."""
        if self.weights:
            return Path(self.weights)
        return next((file for name in WEIGHTS if (file := Path(self.path) / "models" / name).is_file()), None)

    def load_pretrained(self, network: nn.Module) -> None:
        """Fill the network from the bundle."""
        file = self.weights_file()
        if file is None:
            raise UserError(f"{self.path}: has no models/{' or models/'.join(WEIGHTS)} to start from")
        replace(self.found, weights=str(file)).load_pretrained(network)

    def without_weights(self) -> NetworkSettings:
        """The network that was found: a site needs no bundle."""
        return self.found

    def own_name(self, name: str) -> str:
        return self.found.own_name(name)

    def may_be_fresh(self) -> tuple[str, ...]:
        return self.found.may_be_fresh()

    def check_image_size(self, size: int) -> None:
        self.found.check_image_size(size)

    def _definition(self) -> tuple[Path, dict[str, Any]]:
        """The first config that has a `network_def` of plain values."""
        folder = Path(self.path) / "configs"
        if not folder.is_dir():
            raise UserError(
                f"network.path: {self.path} is no MONAI bundle (no folder configs); name an unpacked bundle"
            )
        for file in (folder / name for name in CONFIGS):
            if not file.is_file():
                continue
            try:
                found = json.loads(file.read_text(encoding="utf-8")).get("network_def")
            except (ValueError, AttributeError, RecursionError) as error:
                raise UserError(f"{file}: is no JSON object ({error}); copy the bundle again") from error
            if isinstance(found, dict):
                if strange := [key for key, value in found.items() if _is_code(value)]:
                    raise UserError(f"{file}: network_def.{strange[0]} is an expression, and nothing in a bundle runs "
                                    "here; write the value in its place")
                return file, found
        raise UserError(f"{folder}: no {' or '.join(CONFIGS)} with a network_def; the bundle must name its network so")


def _whole(name: str, arguments: Arguments, file: Path) -> dict[str, Any]:
    """The arguments with MONAI's defaults for those that are missing, as plain lists and lower-case words."""
    target = getattr(nets, name)
    try:
        bound = inspect.signature(target).bind(**arguments)
    except TypeError as error:
        raise UserError(
            f"{file}: network_def: {error}; expected the arguments of monai.networks.nets.{name}"
        ) from error
    bound.apply_defaults()
    return {key: _plain(value) for key, value in bound.arguments.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.lower() if isinstance(value, str) else value


def _is_code(value: Any) -> bool:
    """Whether MONAI would evaluate it, look it up, or build something from it."""
    if isinstance(value, Mapping):
        return "_target_" in value or any(map(_is_code, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_is_code, value))
    return isinstance(value, str) and value.startswith(("$", "@", "%"))


def _whole_as_told(definition: Arguments) -> str:
    return ", ".join(f"{key}: {value}" for key, value in definition.items() if key != "_target_")
