"""A network of MONAI by name and arguments, such as UNet, SegResNet, DynUNet, SwinUNETR or SEResNet50."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from monai.networks import nets

from medfed.networks.parts.bundle_config import is_expression
from medfed.networks.parts.monai_class import DOWNLOADS, OWN_ARGUMENTS, MonaiName, MonaiSettings, parameters


@dataclass(frozen=True)
class MonaiNetwork(MonaiSettings):
    """Settings of a network of MONAI, by its name and arguments, as in the `network_def` of a MONAI bundle.

    The finest features of MONAI's UNet, which methods such as ELCFS compare, have half the image's side if its first
    stride is 2. "SwinUNETR" needs the package einops. The names with "UNet" or "Unet", "SegResNet" and "SwinUNETR" are
    for segmentation, all others for classification.

    Args:
        architecture: name of the class or function in `monai.networks.nets`.
        arguments: keyword arguments of this class, plain values only. The channels and `spatial_dims` must
            not be given, because they follow from the images, `data.patch_size` and the task.

    Example:
        >>> import torch
        >>> settings = MonaiNetwork("UNet", {"channels": [8, 16, 32], "strides": [2, 2], "num_res_units": 2})
        >>> settings.build(in_channels=1, out_channels=2)(torch.rand(4, 1, 64, 64)).shape
        torch.Size([4, 2, 64, 64])
    """

    architecture: MonaiName
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.arguments.items():
            if name in OWN_ARGUMENTS:
                raise ValueError(f"arguments.{name} follows from the images and the task; remove it")
            if name in DOWNLOADS:
                raise ValueError(f"arguments.{name} would download weights; remove it, and name a file with weights")
            if is_expression(value):
                raise ValueError(f"arguments.{name}: expected plain values, got {value!r}, which MONAI would evaluate")
        if self.arguments.get("deep_supervision"):
            raise ValueError("arguments.deep_supervision adds outputs that no method here uses; set it to false")
        if self.architecture == "SwinUNETR" and find_spec("einops") is None:
            raise ValueError("architecture: SwinUNETR needs the package einops; install it with pip install einops")
        try:
            _ = self._places
        except Exception as error:  # MONAI and PyTorch raise many types for wrong arguments
            if self.dimensions == 2:
                with suppress(ValueError):  # arguments such as kernel sizes may be those of three dimensions
                    object.__setattr__(self, "dimensions", replace(self, dimensions=3).dimensions)
                    return
            line = str(error).strip().partition("\n")[0]
            network = getattr(nets, self.architecture)
            others: tuple[str, ...] = (*OWN_ARGUMENTS, *DOWNLOADS, "kwargs")
            if not isinstance(network, type):  # such as resnet18, a function that sets these itself
                others += ("block", "layers", "block_inplanes")
            known = ", ".join(name for name in parameters(network) if name not in others)
            raise ValueError(
                f"arguments: MONAI cannot build this {self.architecture} ({line}); expected {known}"
            ) from error

    def monai_class(self) -> tuple[MonaiName, Mapping[str, Any]]:
        return self.architecture, self.arguments
