"""DenseNet for classification (MONAI's; DenseNet121 by default); its bundle needs MONAI alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from monai.networks.nets import DenseNet
from pydantic import Field
from torch import nn

from medfed.core.bounds import PositiveInt, RatioBelowOne
from medfed.core.errors import UserError
from medfed.networks.base import NetworkSettings


@dataclass(frozen=True)
class DenseNetwork(NetworkSettings):
    """MONAI's DenseNet in two dimensions (Huang et al., CVPR 2017), freshly initialised without `weights`.

    With 3 channels, 2 classes and the defaults this is DenseNet121: 6,955,906 parameters. `weights` may be
    torchvision's (its older files, too), which expect images standardised by ImageNet's mean and standard deviation.

    Args:
        init_features: channels of the first convolution.
        growth_rate: channels that each layer adds.
        blocks: layers of each dense block.
        norm: "batch" (the standard), or "batch_statistics": no weights and no running statistics, so that a
            prediction depends on the images beside it. The public code of CCST and HarmoFL has the latter.
        dropout: probability in [0, 1).
    """

    init_features: PositiveInt = 64
    growth_rate: PositiveInt = 32
    blocks: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (6, 12, 24, 16)
    norm: Literal["batch", "batch_statistics"] = "batch"
    dropout: RatioBelowOne = 0.0

    last_features: ClassVar[str] = "class_layers.relu"
    embedding: ClassVar[str] = "class_layers.flatten"
    head: ClassVar[str] = "class_layers.out"

    @property
    def encoder_stages(self) -> tuple[str, ...]:
        """The seams: after each dense block."""
        return tuple(f"features.denseblock{number}" for number in range(1, len(self.blocks) + 1))

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        """(B, in_channels, H, W) to logits (B, out_channels)."""
        network = DenseNet(**self._arguments(in_channels, out_channels))
        if self.norm == "batch_statistics":  # afterwards, as MONAI cannot initialise a norm without weights
            for path, norm in [found for found in network.named_modules() if isinstance(found[1], nn.BatchNorm2d)]:
                place, _, name = path.rpartition(".")
                bare = nn.BatchNorm2d(norm.num_features, affine=False, track_running_stats=False)
                setattr(network.get_submodule(place), name, bare)
        return network

    def network_def(self, in_channels: int, out_channels: int) -> dict[str, Any] | None:
        """As a bundle's `network_def`; None for "batch_statistics", which MONAI cannot build."""
        if self.norm == "batch_statistics":
            return None
        arguments = self._arguments(in_channels, out_channels)
        return {"_target_": "monai.networks.nets.DenseNet", **arguments, "block_config": list(self.blocks)}

    def translate_weight_name(self, name: str) -> str:
        """torchvision's names too: `denselayer1.norm1` (in older files `norm.1`), and `classifier`."""
        name = re.sub(r"(\.denselayer\d+)\.(norm|conv)\.?([12])\.", r"\1.layers.\2\3.", name)
        return re.sub(r"^classifier\.", f"{self.head}.", name)

    def check_image_size(self, size: int) -> None:
        """Refuse images that the strides (4 at the start, 2 after each block but the last) leave one pixel of.

        BatchNorm cannot work on that in a batch of one image.
        """
        smallest = 8 * 2 ** (len(self.blocks) - 1)
        if size < smallest:
            raise UserError(f"data.image_size is {size}, but this network needs at least {smallest} pixels a side")

    def _arguments(self, in_channels: int, out_channels: int) -> dict[str, Any]:
        return {
            "spatial_dims": 2,
            "in_channels": in_channels,
            "out_channels": out_channels,
            "init_features": self.init_features,
            "growth_rate": self.growth_rate,
            "block_config": tuple(self.blocks),
            "dropout_prob": self.dropout,
        }
