"""The interface of all network settings: how to build the network, load weights, and find its parts by name."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from medfed.core import bounds
from medfed.core.errors import UserError
from medfed.networks import pretrained


@dataclass(frozen=True)
class NetworkSettings:
    """Base class of the networks' settings; a subclass in this package is the `network` block of a config.

    Its properties name submodules as dotted paths (`nn.Module.get_submodule`), so that a method can read or change what
    passes there (see `medfed.functional.hooks`) without renaming any entry of the state dict.

    Args:
        weights: path of a file of pretrained weights to start from; "" starts from random weights. The file holds a
            state dict, as `.safetensors`, or as `.pt` or `.pth` with tensors only, with MONAI's or torchvision's entry
            names. A relative path is relative to the working directory. The last layer may differ (other classes); it
            then starts from random weights. Weights of a network for colour images also fit a network for grey images.
    """

    weights: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        """Check every field against its annotation; a subclass that overrides this method calls it first.

        Raises:
            ValueError: with one sentence for each field whose value is not allowed.
        """
        bounds.check(self)

    @property
    def decoder_levels(self) -> tuple[str, ...]:
        """Paths of the decoder's levels, from the finest (full resolution) to the coarsest; () for classification."""
        return ()

    @property
    def encoder_stages(self) -> tuple[str, ...]:
        """Paths of the modules that end the encoder's stages, the first stage first; methods add layers after them."""
        return ()

    @property
    def last_features(self) -> str:
        """Path of the module that outputs the last feature map (B, C, H, W): before pooling or the last layer."""
        return ""

    @property
    def embedding(self) -> str:
        """Path of the module whose flattened output enters the last layer (classification); "" for segmentation."""
        return ""

    @property
    def head(self) -> str:
        """Path of the last layer, which computes the logits from the last features."""
        return ""

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        """Build the network with random weights.

        Args:
            in_channels: channels of the images.
            out_channels: number of structures (segmentation) or classes (classification).

        Returns:
            A module from images (B, in_channels, H, W) to logits: (B, out_channels, H, W) for segmentation, (B,
            out_channels) for classification.
        """
        raise TypeError(f"{type(self).__name__} must override build() to return its network")

    def network_def(self, in_channels: int, out_channels: int) -> dict[str, Any] | None:
        """Return the `network_def` of a MONAI bundle: a config from which MONAI builds the same network.

        Args:
            in_channels: channels of the images.
            out_channels: number of structures or classes.

        Returns:
            A dict with `_target_` (a class of `monai`) and its arguments; the network has the same state-dict keys as
            the one of `build`. None if MONAI has no such network; its bundle then contains TorchScript.
        """
        return None

    def weights_file(self) -> Path | None:
        """Return the path of the file of pretrained weights; None if training starts from random weights."""
        return Path(self.weights) if self.weights else None

    def load_pretrained(self, network: nn.Module) -> None:
        """Load the pretrained weights into a network; does nothing without `weights`.

        Warns if the last layer keeps its random weights, or if weights for colour images are converted for grey images.

        Args:
            network: a network from `build` that no method has changed; changed in place.

        Raises:
            UserError: if the file is missing or damaged, could run code, or belongs to another network.
        """
        if self.weights:
            for notice in pretrained.load_matching_weights(
                network, Path(self.weights), self.optional_modules(), self.translate_weight_name
            ):
                warnings.warn(notice, stacklevel=2)

    def without_weights(self) -> NetworkSettings:
        """Return these settings without pretrained weights, as a site needs them: it receives the first weights."""
        return replace(self, weights="")

    def translate_weight_name(self, name: str) -> str:
        """Translate the name of an entry in a file of pretrained weights to the network's own name of that entry.

        Args:
            name: state-dict name in the file, for example torchvision's.

        Returns:
            State-dict name in the network that `build` returns.
        """
        return name

    def optional_modules(self) -> tuple[str, ...]:
        """Return the paths of modules that keep their random weights if the pretrained weights do not fit them."""
        return (self.head,)

    def check_image_size(self, size: int) -> None:
        """Check that the network can process square images of this size.

        Args:
            size: side of the images in pixels. Each stage but the first halves it, and the last must have more than one
                pixel for normalisation.

        Raises:
            UserError: with a size that would fit, if this one does not.
        """
        factor = 2 ** (len(self.encoder_stages) - 1)
        if size % factor or size < 2 * factor:
            raise UserError(
                f"data.image_size is {size}, but this network halves the image {len(self.encoder_stages) - 1} times: "
                f"choose a multiple of {factor} that is at least {2 * factor}, for example "
                f"{max(2, round(size / factor)) * factor}"
            )
