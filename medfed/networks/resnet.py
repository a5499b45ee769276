"""MONAI's ResNet for classification with torchvision's layout, ResNet18 by default; its bundle needs only MONAI."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from monai.networks.nets import ResNet
from torch import nn

from medfed.core.bounds import NonNegativeInt, PositiveInt
from medfed.core.errors import UserError
from medfed.networks.parts.base import NetworkSettings

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
    """Settings of MONAI's ResNet in 2-D, whose layers and state dict keys are those of torchvision's ResNet.

    See He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, https://arxiv.org/abs/1512.03385. The
    network starts with a 7x7 convolution and a max-pooling, both with stride 2. The shortcuts have no bias (MONAI's
    default has one). With 3 channels and 7 classes ResNet18 has 11,180,103 parameters and ResNet50 23,522,375.
    `weights` may be a file of torchvision, whose networks expect images standardised by ImageNet's mean and standard
    deviation.

    Args:
        depth: number of layers: 10, 18, 34 or 50.
        width: number of channels of the first stage; doubled at each of the three other stages. The paper has 64; 16
            trains quickly on a laptop.
        embedding_size: number of outputs of an extra linear layer between pooling and the last layer; 0 for none. FISC
            uses 2048 on ResNet50 (27,718,727 parameters with 7 classes). MONAI has no such network, so its bundle
            contains an exported program.
    """

    depth: Depth = 18
    width: PositiveInt = 64
    embedding_size: NonNegativeInt = 0

    encoder_stages: ClassVar[tuple[str, ...]] = ("layer1", "layer2", "layer3", "layer4")
    last_features: ClassVar[str] = "layer4"

    @property
    def embedding(self) -> str:
        """The path of the pooling, "avgpool", or of the linear layer that `embedding_size` adds, "fc.embedding"."""
        return "fc.embedding" if self.embedding_size else "avgpool"

    @property
    def head(self) -> str:
        return "fc.head" if self.embedding_size else "fc"

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        network = ResNet(**self._arguments(in_channels, out_channels))
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
        if self.embedding_size:
            return None
        return {"_target_": "monai.networks.nets.ResNet", **self._arguments(in_channels, out_channels)}

    def translate_weight_name(self, name: str) -> str:
        """Translate torchvision's last layer "fc" to "fc.head" if `embedding_size` adds a linear layer."""
        return re.sub(r"^fc\.(weight|bias)$", rf"{self.head}.\1", name)

    def optional_modules(self) -> tuple[str, ...]:
        """Return "fc", which also has the linear layer of `embedding_size` that published files lack."""
        return ("fc",)

    def check_image_size(self, size: int) -> None:
        """Check that the last feature map has more than one pixel, which BatchNorm needs for a batch of one image."""
        if size <= STRIDE:
            raise UserError(f"data.image_size is {size}, but this network needs at least {STRIDE + 1} pixels per side")

    def _arguments(self, in_channels: int, out_channels: int) -> dict[str, Any]:
        """The arguments of MONAI's ResNet."""
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
