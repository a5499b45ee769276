"""The nine random transforms of BigAug, built from MONAI's transforms, for an image with its masks and other views.

See Zhang et al., "Generalizing Deep Learning for Medical Image Segmentation to Unseen Domains via Deep Stacked
Transformation", IEEE Transactions on Medical Imaging 39(7), 2020, https://arxiv.org/abs/1906.03347.
"""

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
N_CONTROL_POINTS = 16  # of the elastic deformation, along each side
TRUNCATION = 4  # number of standard deviations after which MONAI truncates a Gaussian filter
Function = Callable[[torch.Tensor, np.random.RandomState, Sequence[float]], torch.Tensor]


@dataclass(frozen=True)
class BigAugRanges:
    """(lowest, highest) of the parameters of BigAug's transforms, drawn uniformly; intensities are in [0, 1].

    Args:
        blur: standard deviation in pixels of the Gaussian blur, and of both Gaussians G1 and G2 of the sharpening.
        sharpening: factor a of the sharpening G1 x + a (G1 x - G2 G1 x).
        noise: standard deviation of the Gaussian noise.
        brightness: number added to all intensities.
        contrast: exponent applied to the intensities, scaled to the image's own range.
        perturbation: range of two numbers: one is added to all intensities, the other to the factor 1 by which they are
            multiplied.
        rotation_deg: angle in degrees of a rotation about the centre.
        scaling: factor of a scaling about the centre; above 1 enlarges.
        deformation: largest shift of each of 16 x 16 control points of an elastic deformation, as a fraction of the
            image's side; 0 switches it off.
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


def build_big_aug(
    ranges: BigAugRanges, size: int, probability: float, image_keys: Sequence[str] = (), mask_keys: Sequence[str] = ()
) -> Compose:
    """Return the nine random transforms of BigAug as one transform of a dictionary of images.

    See Zhang et al., IEEE Transactions on Medical Imaging 39(7), 2020, https://arxiv.org/abs/1906.03347. Blur,
    sharpening, noise, brightness, contrast and perturbation (a random linear change of the intensities) change only the
    entry "image", (C, size, size) in [0, 1], and clip it. Rotation, scaling and elastic deformation move all entries in
    the same way; outside of the image, they use the intensities at its border.

    Args:
        ranges: the ranges of the transforms' parameters.
        size: side of the images in pixels.
        probability: probability in [0, 1] of applying each transform.
        image_keys: keys of other images (C, size, size) to move, with bilinear interpolation.
        mask_keys: keys of masks (S, size, size) to move, with nearest-neighbour interpolation.

    Returns:
        A `Compose` of MONAI, which maps such a dictionary to a new dictionary.
    """
    clip = Lambdad(IMAGE_KEY, func=_clip, track_meta=False)
    margin = 3 * math.ceil(TRUNCATION * ranges.blur[1])  # three Gaussians: one of the blur, two of the sharpening
    sharpness = [
        BorderPadd(IMAGE_KEY, margin, mode="replicate"),
        *_sharpness(ranges, probability),
        CenterSpatialCropd(IMAGE_KEY, (size, size)),
        clip,
    ]
    intensity = [step for transform in _intensity(ranges, probability) for step in (transform, clip)]
    return Compose([*sharpness, *intensity, *_geometry(ranges, size, probability, image_keys, mask_keys), clip])


def _sharpness(ranges: BigAugRanges, prob: float) -> list[MapTransform]:
    blur = ranges.blur
    return [
        RandGaussianSmoothd(IMAGE_KEY, sigma_x=blur, sigma_y=blur, prob=prob),
        RandGaussianSharpend(
            IMAGE_KEY, sigma1_x=blur, sigma1_y=blur, sigma2_x=blur, sigma2_y=blur, alpha=ranges.sharpening, prob=prob
        ),
    ]


def _intensity(ranges: BigAugRanges, prob: float) -> list[MapTransform]:
    return [
        RandFunctiond(IMAGE_KEY, [ranges.noise], _add_noise, prob),
        RandShiftIntensityd(IMAGE_KEY, offsets=ranges.brightness, prob=prob),
        RandAdjustContrastd(IMAGE_KEY, gamma=ranges.contrast, prob=prob),
        RandFunctiond(IMAGE_KEY, [ranges.perturbation, ranges.perturbation], _perturb, prob),
    ]


def _geometry(
    ranges: BigAugRanges, size: int, prob: float, image_keys: Sequence[str], mask_keys: Sequence[str]
) -> list[MapTransform]:
    keys, n_smooth = [IMAGE_KEY, *image_keys, *mask_keys], 1 + len(image_keys)
    modes = ["bilinear"] * n_smooth + ["nearest"] * len(mask_keys)
    lowest_angle, highest_angle = map(math.radians, ranges.rotation_deg)
    low, high = ranges.scaling
    shift = 2 * ranges.deformation  # in coordinates from -1 to 1
    steps: list[MapTransform] = [
        RandRotated(keys, range_x=(lowest_angle, highest_angle), mode=modes, padding_mode="border", prob=prob),
        RandZoomd(
            keys,
            min_zoom=low,
            max_zoom=high,
            padding_mode="edge",
            prob=prob,
            mode=[mode.replace("nearest", "nearest-exact") for mode in modes],
            align_corners=[False] * n_smooth + [None] * len(mask_keys),
        ),
    ]
    if shift > 0:  # grid_align_corners: the grid goes from -1 to 1 between the centres of the outer pixels
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
    """Random dictionary transform that applies a function with uniformly drawn parameters to images.

    MONAI's random noise has no lowest standard deviation, and MONAI has no transform for BigAug's perturbation.
    """

    def __init__(self, keys: KeysCollection, ranges: Sequence[Range], function: Function, prob: float) -> None:
        MapTransform.__init__(self, keys)
        RandomizableTransform.__init__(self, prob)
        self.ranges, self.function = ranges, function

    def __call__(self, data: Mapping[Hashable, NdarrayOrTensor]) -> dict[Hashable, NdarrayOrTensor]:
        d = dict(data)
        self.randomize(None)
        if self._do_transform:
            numbers = [float(self.R.uniform(*limits)) for limits in self.ranges]
            for key in self.key_iterator(d):
                d[key] = self.function(convert_to_tensor(d[key], track_meta=get_track_meta()), self.R, numbers)
        return d


def _add_noise(image: torch.Tensor, rng: np.random.RandomState, numbers: Sequence[float]) -> torch.Tensor:
    noise = rng.standard_normal(tuple(image.shape)).astype(np.float32)
    return image + numbers[0] * torch.from_numpy(noise).to(image.device)


def _perturb(image: torch.Tensor, rng: np.random.RandomState, numbers: Sequence[float]) -> torch.Tensor:
    """Multiply by 1 + the first number and add the second."""
    return image * (1 + numbers[0]) + numbers[1]


def _clip(image: torch.Tensor) -> torch.Tensor:
    return image.clamp(0, 1)
