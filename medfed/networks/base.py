"""What a network offers to methods: named places in it, and a recipe for bundles that need no medfed."""

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
    """Base of every network's settings, and the `network` block of a config. A subclass is one file here.

    The names below are paths of submodules (`nn.Module.get_submodule`), so that a method can look at, or change, what
    flows there (`medfed.functional.hooks`) without renaming one entry of the state dict.

    Args:
        weights: a file to start from in place of fresh weights: a state dict as `.safetensors`, or `.pt` or `.pth` of
            tensors alone, with MONAI's names or torchvision's; a relative path starts at the working directory. The
            head may differ (other classes) and then starts fresh. Colour weights fit a network for grey images.
    """

    weights: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        """Check every field against its annotation; a subclass that overrides this calls `super().__post_init__()`.

        Raises:
            ValueError: with one sentence for each field that is not allowed.
        """
        bounds.check(self)

    @property
    def decoder_levels(self) -> tuple[str, ...]:
        """The decoder's levels, from the finest (full resolution) to the coarsest; () for classification."""
        return ()

    @property
    def encoder_stages(self) -> tuple[str, ...]:
        """The modules after which feature-level layers may act, from the first stage on."""
        return ()

    @property
    def last_features(self) -> str:
        """The module whose output is the last map (B, C, H, W): before pooling, or before the head."""
        return ""

    @property
    def embedding(self) -> str:
        """The module whose output, flattened from dimension 1, enters the head; "" for segmentation."""
        return ""

    @property
    def head(self) -> str:
        """The module that turns the last features into logits."""
        return ""

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        """A freshly initialised network: (B, in_channels, H, W) to logits (B, out_channels, H, W)."""
        raise TypeError(f"{type(self).__name__} must build its network")

    def network_def(self, in_channels: int, out_channels: int) -> dict[str, Any] | None:
        """The same network as a MONAI bundle's `network_def` (only `monai.*` targets), with the same state-dict keys.

        None where MONAI has no such network; its bundle then carries TorchScript.
        """
        return None

    def weights_file(self) -> Path | None:
        """The file that training starts from; None where all weights are fresh."""
        return Path(self.weights) if self.weights else None

    def load_pretrained(self, network: nn.Module) -> None:
        """Fill a network that `build` made, and no method has wrapped, from the file `weights`; nothing without one.

        Warns where the head starts fresh, and where a colour file fills a network for grey images.

        Raises:
            UserError: if the file is missing or damaged, could run code, or is of another network.
        """
        if self.weights:
            for notice in pretrained.load_matching_weights(
                network, Path(self.weights), self.optional_modules(), self.translate_weight_name
            ):
                warnings.warn(notice, stacklevel=2)

    def without_weights(self) -> NetworkSettings:
        """The same network with fresh weights: what a site needs, as the first weights come with the first letter."""
        return replace(self, weights="")

    def translate_weight_name(self, name: str) -> str:
        """The network's name of an entry that a file of pretrained weights calls `name`."""
        return name

    def optional_modules(self) -> tuple[str, ...]:
        """Paths of the modules that a file of pretrained weights may lack, or have in another shape."""
        return (self.head,)

    def check_image_size(self, size: int) -> None:
        """Refuse an image size that the levels cannot halve, or that leaves one pixel for normalisation to work on."""
        factor = 2 ** (len(self.encoder_stages) - 1)
        if size % factor or size < 2 * factor:
            raise UserError(
                f"data.image_size is {size}, but this network halves the image {len(self.encoder_stages) - 1} times: "
                f"choose a multiple of {factor} that is at least {2 * factor}, for example "
                f"{max(2, round(size / factor)) * factor}"
            )
