"""Map a range of intensities to [0, 1], as a MONAI transform."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from monai.config import KeysCollection
from monai.data import MetaTensor
from monai.transforms import MapTransform
from monai.utils import convert_to_dst_type
from torch import Tensor


class ScaleRanged(MapTransform):
    """Scale intensities linearly so that a range of intensities becomes [0, 1], and clip to [0, 1].

    The result is bit-identical to that of MONAI's `ScaleIntensityRanged` with `b_min=0`, `b_max=1` and `clip=True`,
    which exported bundles use, and which needs memory for three further copies of the image: 400 MiB for 12 megapixels.
    """

    def __init__(self, keys: KeysCollection, low: float, high: float, allow_missing_keys: bool = False) -> None:
        super().__init__(keys, allow_missing_keys)
        self.low, self.high = low, high

    def __call__(self, data: Mapping[Hashable, Tensor]) -> dict[Hashable, Tensor]:
        scaled = dict(data)
        for key in self.key_iterator(scaled):
            image = scaled[key]
            plain = image.as_tensor() if isinstance(image, MetaTensor) else image
            scaled[key] = convert_to_dst_type(scale_range(plain, self.low, self.high), dst=image)[0]
        return scaled


def scale_range(image: Tensor, low: Any, high: Any) -> Tensor:
    """Map `low` to 0 and `high` to 1 linearly, and clip to [0, 1]; if both are equal, only subtract `low`."""
    scaled = image - low
    if high == low:
        return scaled
    return scaled.div_(high - low).add_(0.0).clamp_(0.0, 1.0)  # -0.0 becomes 0.0, as in MONAI
