"""The nine transforms of BigAug (Zhang et al., TMI 2020), of MONAI's parts, for an image and what goes with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from monai.config import KeysCollection, NdarrayOrTensor
from monai.data.meta_obj import get_track_meta
from monai.transforms import (
    BorderPadd,
    CenterSpatialCropd,
    Compose,
    Lambdad,
    MapTransform,
    RandAdjustContrastd,
    RandGaussianSharpend,
    RandGaussianSmoothd,
    RandomizableTransform,
    RandRotated,
    RandShiftIntensityd,
    RandSmoothDeformd,
    RandZoomd,
)
from monai.utils import convert_to_tensor
from pydantic import AfterValidator, Field

from medfed.core.bounds import NonNegativeFloat, PositiveFloat, ordered

_ORDERED = AfterValidator(ordered)
Range = Annotated[tuple[float, float], _ORDERED]
NonNegativeRange = Annotated[tuple[NonNegativeFloat, NonNegativeFloat], _ORDERED]
PositiveRange = Annotated[tuple[PositiveFloat, PositiveFloat], _ORDERED]
IMAGE_KEY = "image"
N_CONTROL_POINTS = 16  # control points of the deformation along a side
TRUNCATION = 4  # deviations at which MONAI cuts a Gaussian off
Function = Callable[[torch.Tensor, np.random.RandomState, Sequence[float]], torch.Tensor]


@dataclass(frozen=True)
class BigAugRanges:
    """How far each transform goes; intensities are in [0, 1].

    Args:
        blur: deviation of the Gaussian, in pixels; of both Gaussians of the sharpening, too.
        sharpening: a, in G1 * x + a (G1 * x - G2 * G1 * x).
        noise: deviation of the Gaussian noise.
        brightness: shift.
        contrast: exponent, on the image's own range of intensities.
        perturbation: one number added to the image, and one to the factor 1 that it is multiplied by.
        rotation_deg, scaling: about the centre; of scaling, above 1 enlarges.
        deformation: by how much each of 16 x 16 control points is shifted at most, as a share of the side; one number.
    """

    blur: PositiveRange = (0.25, 1.5)
    sharpening: NonNegativeRange = (10.0, 30.0)
    noise: NonNegativeRange = (0.1, 1.0)
    brightness: Range = (-0.1, 0.1)
    contrast: PositiveRange = (0.5, 4.5)
    perturbation: Range = (-0.1, 0.1)
    rotation_deg: Range = (-20.0, 20.0)
    scaling: PositiveRange = (0.4, 1.6)
    deformation: Annotated[float, Field(ge=0, lt=0.5)] = 0.01


def big_aug(
    ranges: BigAugRanges, size: int, probability: float, pictures: Sequence[str] = (), masks: Sequence[str] = ()
) -> Compose:
    """The nine, each with its own coin, for a dictionary that holds an "image" (C, size, size) in [0, 1].

    Blur, sharpening, noise, brightness, contrast and perturbation change the image alone, which is cut to [0, 1] after
    each. Rotation, scaling and deformation move whatever is named alike. Beyond the edges the image goes on as it ends
    there (MONAI's Gaussians alone would see black, and darken a rim).

    Args:
        pictures: other keys to move, bilinearly as the image.
        masks: keys of labels to move, to the nearest.
    """
    cut = Lambdad(IMAGE_KEY, func=_clip, track_meta=False)
    rim = 3 * math.ceil(TRUNCATION * ranges.blur[1])  # of one Gaussian, then two
    sharpness = [BorderPadd(IMAGE_KEY, rim, mode="replicate"), *_sharpness(ranges, probability),
                 CenterSpatialCropd(IMAGE_KEY, (size, size)), cut]  # fmt: skip
    intensity = [step for one in _intensity(ranges, probability) for step in (one, cut)]
    return Compose([*sharpness, *intensity, *_geometry(ranges, size, probability, pictures, masks), cut])


def _sharpness(ranges: BigAugRanges, prob: float) -> list[MapTransform]:
    blur = ranges.blur
    return [
        RandGaussianSmoothd(IMAGE_KEY, sigma_x=blur, sigma_y=blur, prob=prob),
        RandGaussianSharpend(IMAGE_KEY, sigma1_x=blur, sigma1_y=blur, sigma2_x=blur, sigma2_y=blur,
                             alpha=ranges.sharpening, prob=prob),
    ]  # fmt: skip


def _intensity(ranges: BigAugRanges, prob: float) -> list[MapTransform]:
    return [
        RandFunctiond(IMAGE_KEY, [ranges.noise], _add_noise, prob),
        RandShiftIntensityd(IMAGE_KEY, offsets=ranges.brightness, prob=prob),
        RandAdjustContrastd(IMAGE_KEY, gamma=ranges.contrast, prob=prob),
        RandFunctiond(IMAGE_KEY, [ranges.perturbation, ranges.perturbation], _perturb, prob),
    ]


def _geometry(
    ranges: BigAugRanges, size: int, prob: float, pictures: Sequence[str], masks: Sequence[str]
) -> list[MapTransform]:
    keys, n_smooth = [IMAGE_KEY, *pictures, *masks], 1 + len(pictures)
    modes = ["bilinear"] * n_smooth + ["nearest"] * len(masks)
    least_angle, largest_angle = map(math.radians, ranges.rotation_deg)
    low, high = ranges.scaling
    shift = 2 * ranges.deformation  # of coordinates from -1 to 1
    steps: list[MapTransform] = [
        RandRotated(keys, range_x=(least_angle, largest_angle), mode=modes, padding_mode="border", prob=prob),
        RandZoomd(keys, min_zoom=low, max_zoom=high, padding_mode="edge", prob=prob,
                  mode=[mode.replace("nearest", "nearest-exact") for mode in modes],
                  align_corners=[False] * n_smooth + [None] * len(masks)),
    ]  # fmt: skip
    if shift > 0:  # corners are aligned because its grid goes from -1 to 1 between the middles of the outer pixels
        steps.append(
            RandSmoothDeformd(
                keys,
                (size, size),
                (N_CONTROL_POINTS, N_CONTROL_POINTS),
                field_mode="bicubic",
                align_corners=False,
                def_range=(-shift, shift),
                grid_mode=modes,
                grid_align_corners=True,
                prob=prob,
            )
        )
    return steps


class RandFunctiond(RandomizableTransform, MapTransform):
    """A change whose numbers are drawn uniformly; MONAI's noise cannot have a lowest deviation, and none perturbs.

    Args:
        keys: images (C, H, W).
        ranges: of the numbers.
        function: (image, random state, numbers) to an image.
        prob: of the change.
    """

    def __init__(self, keys: KeysCollection, ranges: Sequence[Range], function: Function, prob: float) -> None:
        MapTransform.__init__(self, keys)
        RandomizableTransform.__init__(self, prob)
        self.ranges, self.function = ranges, function

    def __call__(self, data: Mapping[Hashable, NdarrayOrTensor]) -> dict[Hashable, NdarrayOrTensor]:
        d = dict(data)
        self.randomize(None)
        if self._do_transform:
            numbers = [float(self.R.uniform(*one)) for one in self.ranges]
            for key in self.key_iterator(d):
                d[key] = self.function(convert_to_tensor(d[key], track_meta=get_track_meta()), self.R, numbers)
        return d


def _add_noise(image: torch.Tensor, draws: np.random.RandomState, numbers: Sequence[float]) -> torch.Tensor:
    noise = draws.standard_normal(tuple(image.shape)).astype(np.float32)
    return image + numbers[0] * torch.from_numpy(noise).to(image.device)


def _perturb(image: torch.Tensor, draws: np.random.RandomState, numbers: Sequence[float]) -> torch.Tensor:
    return image * (1 + numbers[0]) + numbers[1]


def _clip(image: torch.Tensor) -> torch.Tensor:
    return image.clamp(0, 1)
