"""BigAug (Zhang et al., IEEE TMI 2020): train on images that are changed by a stack of nine strong random transforms.

L. Zhang, X. Wang, D. Yang, T. Sanford, S. Harmon, B. Turkbey, B. J. Wood, H. Roth, A. Myronenko, D. Xu, Z. Xu:
"Generalizing Deep Learning for Medical Image Segmentation to Unseen Domains via Deep Stacked Transformation", IEEE
Transactions on Medical Imaging 39 (7), 2020, https://arxiv.org/abs/1906.03347.

Idea: strong augmentation of sharpness, intensities and geometry simulates the differences between hospitals. Sites send
the same messages as FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from medfed.core.batch import Batch
from medfed.core.bounds import Ratio
from medfed.federation.local_round import LocalRound
from medfed.federation.method import Method
from medfed.transforms.big_aug import IMAGE_KEY, BigAugRanges, NonNegativeRange, build_big_aug

LABEL = "label"


@dataclass(frozen=True)
class BigAug(BigAugRanges, Method):
    """FedAvg on images that are changed by nine random transforms, each applied with its own probability.

    The transforms, in this order: blur, sharpening, noise, brightness, contrast, perturbation, rotation, scaling,
    deformation. The first six change the image alone; the last three also move masks (nearest neighbour) and views
    (bilinear). Class labels do not change. Images are in [0, 1] and are clipped to this range after each transform. The
    transforms come after those of `training.augment`, which rotates and scales a little; set it to false for BigAug
    alone. They run on the CPU, image by image: on one core, 5 colour images of 384 x 384 pixels with masks take about
    0.2 s.

    Departures: there is no official code. The ranges are those of an unofficial port and were not checked against the
    paper. The port's noise, with a standard deviation of up to 1, leaves little of an image; our default is at most
    0.1, as in MONAI. The range of the deformation is not known to us: ours shifts each of 16 x 16 control points by up
    to 1 % of the image's side, which never folds the image (MONAI's `Rand2DElastic` deforms by 5 % of its spacing even
    at strength 0).

    Args:
        blur: range (lowest, highest) of the standard deviation of the Gaussian blur, in pixels of the image as it is
            trained, above 0. The sharpening uses the same range for both of its Gaussians.
        sharpening: range (lowest, highest) of the amount a of sharpening, at least 0. With Gaussian filters G1 and G2
            the result is G1 * x + a (G1 * x - G2 * G1 * x).
        noise: range (lowest, highest) of the standard deviation of the Gaussian noise, at least 0, for images in [0,
            1].
        brightness: range (lowest, highest) of the number that is added to all pixels, for images in [0, 1].
        contrast: range (lowest, highest) of the exponent of the gamma correction, above 0; 1 changes nothing.
        perturbation: range (lowest, highest) of two numbers: the image is multiplied by 1 plus the first, and the
            second is added.
        rotation_deg: range (lowest, highest) of the angle of rotation about the image's centre, in degrees.
        scaling: range (lowest, highest) of the zoom factor about the image's centre, above 0; above 1 enlarges.
        deformation: largest shift of a control point, as a fraction of the image's side, in [0, 0.5). 0 leaves the
            deformation out.
        probability: probability of each transform for each image, in [0, 1]. With 0 the result is bit-identical to
            FedAvg.

    Presets: "medfed" has noise from 0 to 0.1; "port" has noise from 0.1 to 1, as the unofficial port. There is no
    preset "paper", because no range could be checked against the paper.
    """

    probability: Ratio = 0.5
    noise: NonNegativeRange = (0.0, 0.1)

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "port": {"noise": BigAugRanges.noise}}

    def augment(self, local: LocalRound, batch: Batch) -> Batch:
        """Apply the nine transforms to images, masks and views."""
        if self.probability == 0:
            return batch
        views, masks = list(batch.views), [LABEL] if batch.label.ndim == 4 else []
        transforms = build_big_aug(
            self, batch.image.shape[-1], self.probability, [_view(name) for name in views], masks
        )
        transforms.set_random_state(int(torch.randint(2**31, (), generator=local.rng)))
        on_cpu = batch.to(torch.device("cpu"))
        entries = {IMAGE_KEY: on_cpu.image, **{_view(name): on_cpu.views[name] for name in views}}
        entries |= dict.fromkeys(masks, on_cpu.label)
        samples = [transforms({key: entry[i] for key, entry in entries.items()}) for i in range(len(on_cpu.image))]
        changed = {key: _stacked([sample[key] for sample in samples], entry) for key, entry in entries.items()}
        changed_views = {name: changed[_view(name)] for name in views}
        label = changed.get(LABEL, on_cpu.label)
        return Batch(changed[IMAGE_KEY], label, changed_views, on_cpu.moments).to(batch.image.device)


def _view(name: str) -> str:
    """The key under which the transforms find the view of this name."""
    return f"view {name}"


def _stacked(parts: list[Tensor], like: Tensor) -> Tensor:
    """Stack MONAI's MetaTensors (C, H, W) to a plain tensor (B, C, H, W) with the data type of `like`."""
    return torch.stack([torch.Tensor.as_subclass(part, Tensor) for part in parts]).to(like.dtype)
