"""MONAI's ResNet for classification with torchvision's layout, ResNet18 by default; its bundle needs only MONAI."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from medfed.core.bounds import NonNegativeInt, PositiveInt
from medfed.networks.parts.monai_class import MonaiName, MonaiSettings

Depth = Literal[10, 18, 34, 50]
BLOCKS: dict[Depth, tuple[str, tuple[int, int, int, int]]] = {  # depth: (block, blocks in each stage)
    10: ("basic", (1, 1, 1, 1)),
    18: ("basic", (2, 2, 2, 2)),
    34: ("basic", (3, 4, 6, 3)),
    50: ("bottleneck", (3, 4, 6, 3)),
}


@dataclass(frozen=True)
class ResidualNetwork(MonaiSettings):
    """Settings of MONAI's ResNet in 2-D, whose layers and state dict keys are those of torchvision's ResNet.

    See He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, https://arxiv.org/abs/1512.03385. The
    network starts with a 7x7 convolution and a max-pooling, both with stride 2. The shortcuts have no bias (MONAI's
    default has one). With 3 channels and 7 classes ResNet18 has 11,180,103 parameters and ResNet50 23,522,375.
    `weights` may be a file of torchvision, whose networks expect images standardised by ImageNet's mean and standard
    deviation.

    Args:
        depth: number of layers: 10, 18, 34 or 50.
        width: number of channels of the first stage; doubled at each of the three other stages. He et al. have
            64; 16 trains quickly on a laptop.
        embedding_size: number of outputs of an extra linear layer between pooling and the last layer; 0 for none. FISC
            uses 2048 on ResNet50 (27,718,727 parameters with 7 classes). MONAI has no such network, so its bundle
            contains an exported program.
    """

    depth: Depth = 18
    width: PositiveInt = 64
    embedding_size: NonNegativeInt = 0

    def monai_class(self) -> tuple[MonaiName, Mapping[str, Any]]:
        block, layers = BLOCKS[self.depth]
        return "ResNet", {
            "block": block,
            "layers": layers,
            "block_inplanes": tuple(self.width * 2**stage for stage in range(4)),
            "conv1_t_size": 7,
            "conv1_t_stride": 2,
            "bias_downsample": False,
        }

    @property
    def embedding(self) -> str:
        """The path of the pooling, "avgpool", or of the linear layer that `embedding_size` adds, "fc.embedding"."""
        return "fc.embedding" if self.embedding_size else "avgpool"

    @property
    def head(self) -> str:
        return "fc.head" if self.embedding_size else "fc"

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        network = super().build(in_channels, out_channels)
        if self.embedding_size:
            pooled = network.get_submodule("fc").get_parameter("weight").shape[1]
            network.add_module(
                "fc",
                nn.Sequential(
                    OrderedDict(
                        embedding=nn.Linear(pooled, self.embedding_size),
                        head=nn.Linear(self.embedding_size, out_channels),
                    )
                ),
            )
        return network

    def network_def(self, in_channels: int, out_channels: int) -> dict[str, Any] | None:
        """Return None if `embedding_size` adds a linear layer, because MONAI has no such ResNet."""
        return None if self.embedding_size else super().network_def(in_channels, out_channels)

    def translate_weight_name(self, name: str) -> str:
        """Translate torchvision's last layer "fc" to "fc.head" if `embedding_size` adds a linear layer."""
        return re.sub(r"^fc\.(weight|bias)$", rf"{self.head}.\1", name)

    def optional_modules(self) -> tuple[str, ...]:
        """Return "fc", which also has the linear layer of `embedding_size` that published files lack."""
        return ("fc",)
