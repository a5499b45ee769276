"""The interface of all network settings: how to build the network, load weights, and find its parts by name."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from medfed.core import bounds
from medfed.core.errors import UserError
from medfed.networks.parts import pretrained


class Places(NamedTuple):
    """Dotted paths of a network's submodules, as the properties of `NetworkSettings` return them."""

    encoder_stages: tuple[str, ...] = ()
    decoder_levels: tuple[str, ...] = ()
    last_features: str = ""
    head: str = ""
    embedding: str = ""


@dataclass(frozen=True)
class NetworkSettings:
    """Base class of the settings of a network, which are the `network` block of a config file.

    Its properties name submodules by dotted paths (`nn.Module.get_submodule`), so that a federated method can read or
    change their outputs (see `medfed.functional.hooks`) without renaming any entry of the state dict.

    Args:
        weights: path of a file of pretrained weights to start from; "" starts from random weights. The file holds a
            state dict, as `.safetensors`, or as `.pt` or `.pth` with tensors only, with MONAI's or torchvision's entry
            names. A relative path is relative to the working directory. The last layer may differ (other classes); it
            then starts from random weights. Weights of a network for colour images also fit a network for grey images.

    Attributes:
        dimensions: 2 for images and slices, 3 for patches of volumes. In a config it follows from `data.patch_size`.
    """

    weights: str = field(default="", kw_only=True)
    dimensions: Literal[2, 3] = field(default=2, kw_only=True, metadata={"derived": True})

    def __post_init__(self) -> None:
        """Check every field against its annotation. A subclass that overrides this method must call it first."""
        bounds.check(self)

    @property
    def _places(self) -> Places:
        return Places()

    @property
    def decoder_levels(self) -> tuple[str, ...]:
        """Paths of the levels of a segmentation network's decoder, the finest first; () without a decoder."""
        return self._places.decoder_levels

    @property
    def encoder_stages(self) -> tuple[str, ...]:
        """Paths of the submodules that end the encoder's stages (parts of one resolution), the first stage first."""
        return self._places.encoder_stages

    @property
    def last_features(self) -> str:
        """Path of the submodule that outputs the last feature map (B, C, H, W), before the pooling or last layer."""
        return self._places.last_features

    @property
    def embedding(self) -> str:
        """Path of the submodule whose flattened output (B, d) enters the last layer; "" for segmentation."""
        return self._places.embedding

    @property
    def head(self) -> str:
        """Path of the network's last layer, which computes the logits, such as "fc".

        Methods with heads of their own (such as COPA) need an nn.Linear or nn.Conv2d there, and refuse other layers.
        """
        return self._places.head

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        """Build the network with random weights.

        Args:
            in_channels: number of image channels.
            out_channels: number of structures (segmentation) or classes (classification).

        Returns:
            A module from images (B, in_channels, H, W) to logits: (B, out_channels, H, W) for segmentation, (B,
            out_channels) for classification.
        """
        raise TypeError(f"{type(self).__name__} must override build() to return its network")

    def network_def(self, in_channels: int, out_channels: int) -> dict[str, Any] | None:
        """Return the entry `network_def` of a MONAI bundle's config, from which MONAI builds the same network.

        Returns:
            A dict with `_target_`, the path of one of MONAI's networks, and its arguments. The state-dict keys are
            those of `build`'s network. None if MONAI has no such network; the bundle then contains an exported program
            (`torch.export`).
        """
        return None

    def monai_weights(self, network: nn.Module, in_channels: int, out_channels: int) -> dict[str, Tensor]:
        """Return the weights of a network from `build` under the names that MONAI's class in `network_def` expects."""
        return network.state_dict()

    def weights_file(self) -> Path | None:
        """Return the path of the setting `weights`; None if it is "", so that training starts from random weights."""
        return Path(self.weights) if self.weights else None

    def load_pretrained(self, network: nn.Module) -> None:
        """Load the weights of `weights_file`, if there is one, into a network from `build`, in place.

        A Python warning is given if the last layer keeps its random weights, or if weights for colour images are
        converted for grey images.

        Raises:
            UserError: if the file is missing or damaged, could run code, or belongs to another network.
        """
        if file := self.weights_file():
            for notice in pretrained.load_matching_weights(
                network, file, self.optional_modules(), self.translate_weight_name
            ):
                warnings.warn(notice, stacklevel=2)

    def without_weights(self) -> NetworkSettings:
        """Return a copy of these settings that builds the same network without pretrained weights.

        Sites get this copy: they need no weights file, because the coordinator sends them the first weights.
        """
        return replace(self, weights="")

    def translate_weight_name(self, name: str) -> str:
        """Translate the name of an entry in a file of pretrained weights to its name in the network, "" if unused."""
        return name

    def optional_modules(self) -> tuple[str, ...]:
        """Return the paths of the submodules that a file of pretrained weights need not fit; they then stay random.

        By default only the last layer, because the pretrained weights may come from a task with other classes.
        """
        return (self.head,)

    def check_image_size(self, size: int) -> None:
        """Check that the network can process square images of this size in pixels.

        Each stage of the encoder after the first one halves the side, which must be even before each halving, and at
        least 2 pixels after the last one.

        Raises:
            UserError: if the size does not fit. The message names a size that fits.
        """
        check_halvings(size, len(self.encoder_stages) - 1)

    def check_patch_size(self, size: tuple[int, int, int]) -> None:
        """Check that the network can process patches of volumes of this size in voxels; by default, it cannot.

        Raises:
            UserError: if the size does not fit. The message names a size that fits.
        """
        raise UserError(
            "data.patch_size: patches of volumes need a segmentation network with three dimensions, which network is "
            "not; choose unet, monai_network or a 3-D bundle, or remove data.patch_size to train on slices"
        )


def check_halvings(size: int, n_halvings: int) -> None:
    """UserError, with a size that fits, if an image's side is odd before a halving or below 2 pixels after the last."""
    factor = 2**n_halvings
    if size % factor or size < 2 * factor:
        raise UserError(
            f"data.image_size is {size}, but this network halves the image {n_halvings} times: choose a multiple of "
            f"{factor} that is at least {2 * factor}, for example {max(2, round(size / factor)) * factor}"
        )
