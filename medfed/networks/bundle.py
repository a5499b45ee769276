"""The network and weights of a MONAI bundle as the start of a federation. The bundle is read as data; no code runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from medfed.core.bounds import with_tuples
from medfed.core.errors import UserError
from medfed.networks.monai_network import MonaiNetwork
from medfed.networks.parts.bundle_config import read_network_def
from medfed.networks.parts.monai_class import DOWNLOADS, OWN_ARGUMENTS, MonaiName, MonaiSettings

WEIGHT_FILES = ("model.safetensors", "model.pt")


@dataclass(frozen=True)
class Bundle(MonaiSettings):
    """Settings that take the network and the pretrained weights from an unpacked MONAI bundle.

    The network is `network_def` in the bundle's configs/inference, train or evaluate, as JSON or YAML. It must be a
    network of MONAI that medfed knows, such as UNet or DenseNet121, with plain values or references to plain values as
    arguments: a bundle's config can run any code (`$...`, `_target_`), and medfed reads it without running anything. A
    3-D network needs `data.patch_size`. The weights are models/model.safetensors or models/model.pt, unless `weights`
    names another file.

    Args:
        path: the bundle's folder; a relative path is relative to the working directory.
    """

    path: str

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            object.__setattr__(self, "dimensions", self._network.dimensions)
        except UserError as error:
            raise ValueError(str(error)) from None

    @cached_property
    def _network(self) -> MonaiNetwork:
        """The network of `network_def` in the bundle's config."""
        place, name, given = read_network_def(Path(self.path))
        arguments = {key: value for key, value in given.items() if key not in (*OWN_ARGUMENTS, *DOWNLOADS)}
        try:
            return MonaiNetwork(name, with_tuples(arguments), dimensions=given["spatial_dims"])
        except ValueError as error:
            raise UserError(f"{place}: {error}") from error

    def monai_class(self) -> tuple[MonaiName, Mapping[str, Any]]:
        return self._network.monai_class()

    def weights_file(self) -> Path | None:
        """Return the file `weights`, else models/model.safetensors or model.pt in the bundle, else None."""
        if self.weights:
            return Path(self.weights)
        return next((file for name in WEIGHT_FILES if (file := Path(self.path) / "models" / name).is_file()), None)

    def load_pretrained(self, network: nn.Module) -> None:
        """Load the weights of the bundle into the network, in place; UserError if it has none."""
        if self.weights_file() is None:
            files = " or ".join(f"models/{name}" for name in WEIGHT_FILES)
            raise UserError(f"{self.path}: has no {files} to start from; copy the bundle again, or set network.weights")
        super().load_pretrained(network)

    def without_weights(self) -> MonaiNetwork:
        return self._network
