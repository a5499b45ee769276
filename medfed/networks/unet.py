"""MONAI's BasicUNet, a small and fast U-Net for segmentation; its bundle needs only MONAI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from medfed.core.bounds import PositiveInt, RatioBelowOne
from medfed.networks.parts.monai_class import MonaiName, MonaiSettings


@dataclass(frozen=True)
class UNet(MonaiSettings):
    """Settings of MONAI's BasicUNet: five levels with two convolutions each, and skip connections.

    Args:
        features: numbers of channels of the five encoder levels, the finest first, and of the last decoder level.
        norm: normalisation after each convolution: "instance" (without running statistics) or "batch".
        dropout: probability of dropout after each convolution, in [0, 1).
    """

    features: tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt, PositiveInt, PositiveInt] = (
        32,
        32,
        64,
        128,
        256,
        32,
    )
    norm: Literal["instance", "batch"] = "instance"
    dropout: RatioBelowOne = 0.0

    def monai_class(self) -> tuple[MonaiName, Mapping[str, Any]]:
        norm = (self.norm, {"affine": True})
        return "BasicUNet", {"features": tuple(self.features), "norm": norm, "dropout": self.dropout}
