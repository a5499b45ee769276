"""ResNet for classification (MONAI's, laid out as torchvision's; ResNet18 by default); its bundle needs MONAI alone."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from monai.networks.nets import ResNet
from torch import nn

from medfed.core.bounds import NonNegativeInt, PositiveInt
from medfed.core.errors import UserError
from medfed.networks.base import NetworkSettings

Depth = Literal[10, 18, 34, 50]
ARCHITECTURES: dict[Depth, tuple[str, tuple[int, int, int, int]]] = {  # depth: (block, blocks in each stage)
    10: ("basic", (1, 1, 1, 1)),
    18: ("basic", (2, 2, 2, 2)),
    34: ("basic", (3, 4, 6, 3)),
    50: ("bottleneck", (3, 4, 6, 3)),
}
STRIDE = 32


@dataclass(frozen=True)
class ResidualNetwork(NetworkSettings):
    """MONAI's ResNet in two dimensions (He et al., CVPR 2016), with torchvision's layers and names.

    A 7x7 convolution and a max-pool, a stride of 2 each, and no bias in the shortcuts (MONAI's default has one). With
    3 channels and 7 classes ResNet18 has 11,180,103 parameters, ResNet50 23,522,375. `weights` may be torchvision's,
    which expect images standardised by ImageNet's mean and standard deviation.

    Args:
        depth: 10, 18, 34 or 50 layers.
        width: channels of the first stage; doubled at each of the three others. 16 trains quickly on a laptop.
        embedding_size: outputs of a linear layer between pooling and head; 0 for none. FISC has 2048 on ResNet50,
            27,718,727 parameters in all. MONAI has no such network, so a bundle then carries TorchScript alone.
    """

    depth: Depth = 18
    width: PositiveInt = 64
    embedding_size: NonNegativeInt = 0

    encoder_stages: ClassVar[tuple[str, ...]] = ("layer1", "layer2", "layer3", "layer4")
    last_features: ClassVar[str] = "layer4"

    @property
    def embedding(self) -> str:
        """The pooled features, or the linear layer behind them."""
        return "fc.embedding" if self.embedding_size else "avgpool"

    @property
    def head(self) -> str:
        """The last linear layer."""
        return "fc.head" if self.embedding_size else "fc"

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        """(B, in_channels, H, W) to logits (B, out_channels)."""
        network = ResNet(**self._arguments(in_channels, out_channels))
        if self.embedding_size:
            pooled = network.get_submodule("fc").get_parameter("weight").shape[1]
            network.add_module("fc", nn.Sequential(OrderedDict(
                embedding=nn.Linear(pooled, self.embedding_size),
                head=nn.Linear(self.embedding_size, out_channels),
            )))  # fmt: skip
        return network

    def network_def(self, in_channels: int, out_channels: int) -> dict[str, Any] | None:
        """As a bundle's `network_def`; None with an `embedding_size`, which MONAI cannot build."""
        if self.embedding_size:
            return None
        return {"_target_": "monai.networks.nets.ResNet", **self._arguments(in_channels, out_channels)}

    def translate_weight_name(self, name: str) -> str:
        """torchvision's names are the network's, but for the head behind an embedding."""
        return re.sub(r"^fc\.(weight|bias)$", rf"{self.head}.\1", name)

    def optional_modules(self) -> tuple[str, ...]:
        """The head, and the embedding, which no published file has."""
        return ("fc",)

    def check_image_size(self, size: int) -> None:
        """Refuse images of which one pixel is left: BatchNorm cannot work on that in a batch of one image."""
        if size <= STRIDE:
            raise UserError(f"data.image_size is {size}, but this network needs at least {STRIDE + 1} pixels a side")

    def _arguments(self, in_channels: int, out_channels: int) -> dict[str, Any]:
        block, layers = ARCHITECTURES[self.depth]
        return {
            "block": block,
            "layers": list(layers),
            "block_inplanes": [self.width * 2**stage for stage in range(4)],
            "spatial_dims": 2,
            "n_input_channels": in_channels,
            "conv1_t_size": 7,
            "conv1_t_stride": 2,
            "num_classes": out_channels,
            "bias_downsample": False,
        }
