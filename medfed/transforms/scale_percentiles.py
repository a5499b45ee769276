"""Map two percentiles of an image's intensities to 0 and 1, as a MONAI transform."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from monai.config import KeysCollection
from monai.transforms import MapTransform
from monai.transforms.utils_pytorch_numpy_unification import percentile
from monai.utils import convert_to_dst_type, convert_to_tensor
from torch import Tensor

from medfed.functional.quantiles import quantiles
from medfed.transforms.scale_range import scale_range

MAX_TORCH_VALUES = 1_000_000  # MONAI computes the percentiles of larger images with NumPy, which rounds differently


class ScalePercentilesd(MapTransform):
    """Scale intensities linearly so that two percentiles become 0 and 1, and clip to [0, 1].

    The percentiles are those of all channels together. The result is bit-identical to that of MONAI's
    `ScaleIntensityRangePercentilesd` with `b_min=0`, `b_max=1` and `clip=True`, which exported bundles use and which
    takes up to thirty times as long.

    Args:
        keys: keys of the data dictionary whose images are scaled.
        lower: percentile that becomes 0, in [0, 100].
        upper: percentile that becomes 1, in [0, 100].
        allow_missing_keys: True ignores keys that the data dictionary does not contain; False raises an error.
    """

    def __init__(self, keys: KeysCollection, lower: float, upper: float, allow_missing_keys: bool = False) -> None:
        super().__init__(keys, allow_missing_keys)
        self.percentiles = lower, upper

    def __call__(self, data: Mapping[Hashable, Tensor]) -> dict[Hashable, Tensor]:
        scaled = dict(data)
        for key in self.key_iterator(scaled):
            image = convert_to_tensor(scaled[key], track_meta=False)
            limits: Iterable[Any]  # tensors without axes, because a number would round the scaled image differently
            if image.numel() > MAX_TORCH_VALUES:
                limits = (percentile(image, percent) for percent in self.percentiles)
            else:
                limits = quantiles(image, [percent / 100 for percent in self.percentiles])
            low, high = limits
            scaled[key] = convert_to_dst_type(scale_range(image, low, high), dst=scaled[key])[0]
        return scaled
