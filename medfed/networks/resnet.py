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
        """Dotted path of the submodule whose output, flattened to (B, d), enters the network's last layer.

        The path is the pooling "avgpool" if `embedding_size` is 0. Otherwise the path is "fc.embedding", the linear
        layer that `embedding_size` adds before the last layer.
        """
        return "fc.embedding" if self.embedding_size else "avgpool"

    @property
    def head(self) -> str:
        """Dotted path of the network's last linear layer, which computes the logits.

        The path is "fc" if `embedding_size` is 0, and "fc.head" otherwise.
        """
        return "fc.head" if self.embedding_size else "fc"

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        """Build the ResNet with random weights.

        Args:
            in_channels: number of image channels.
            out_channels: number of classes.

        Returns:
            A module from images (B, in_channels, H, W) to logits (B, out_channels).
        """
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
        """Return the entry `network_def` of a MONAI bundle's config, from which MONAI builds the same network.

        Args:
            in_channels: number of image channels.
            out_channels: number of classes.

        Returns:
            A dict with `_target_`, the name of MONAI's class ("monai.networks.nets.ResNet"), and the arguments of
            MONAI's class. None if `embedding_size` adds a linear layer, because MONAI has no such ResNet.
        """
        if self.embedding_size:
            return None
        return {"_target_": "monai.networks.nets.ResNet", **self._arguments(in_channels, out_channels)}

    def translate_weight_name(self, name: str) -> str:
        """Translate a state-dict name of torchvision's ResNet to the name of this entry in the network.

        All names are equal, with one exception: if `embedding_size` adds a linear layer before the last one,
        torchvision's last layer "fc" is called "fc.head" in the network.

        Args:
            name: state-dict name in a file of pretrained weights.

        Returns:
            State-dict name in the network that `build` returns.
        """
        return re.sub(r"^fc\.(weight|bias)$", rf"{self.head}.\1", name)

    def optional_modules(self) -> tuple[str, ...]:
        """Return the dotted paths of the submodules that a file of pretrained weights need not fit: only "fc".

        If the file lacks the weights of "fc", or has them in another shape, "fc" keeps its random weights. The
        submodule "fc" contains the last layer, which in published files has another number of classes. If
        `embedding_size` is above 0, "fc" also contains a linear layer that published files lack.
        """
        return ("fc",)

    def check_image_size(self, size: int) -> None:
        """Check that square images of this size leave more than one pixel in the network's last feature map.

        BatchNorm needs more than one pixel to train with a batch of one image.

        Args:
            size: side of the images in pixels, at least 33. The network divides it by 32 and rounds up.

        Raises:
            UserError: if the size is too small.
        """
        if size <= STRIDE:
            raise UserError(f"data.image_size is {size}, but this network needs at least {STRIDE + 1} pixels per side")

    def _arguments(self, in_channels: int, out_channels: int) -> dict[str, Any]:
        """Return the keyword arguments of MONAI's class."""
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
