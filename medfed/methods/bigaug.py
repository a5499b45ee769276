"""BigAug (Zhang et al., TMI 2020): nine strong random changes of each image, in place of other hospitals' images.

L. Zhang, X. Wang, D. Yang, T. Sanford, S. Harmon, B. Turkbey, B. J. Wood, H. Roth, A. Myronenko, D. Xu, Z. Xu:
"Generalizing Deep Learning for Medical Image Segmentation to Unseen Domains via Deep Stacked Transformation", IEEE
Transactions on Medical Imaging 39 (7), 2020, https://arxiv.org/abs/1906.03347. Idea: a stack of strong augmentations
simulates the shift between hospitals.
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
    """FedAvg on images changed by nine transforms, each with its own coin; nothing beside the weights is shared.

    In this order, on raw images in [0, 1], cut to that range after each: blur, sharpening, noise, brightness, contrast,
    perturbation (of the image alone), rotation, scaling, deformation (of mask and views, too; masks to the nearest).
    The label of a class stays. A batch's transforms are seeded from the round's stream, so that they repeat to the bit.
    They come on top of `training.augment`, which rotates and scales a little; set that to false for BigAug alone.

    All are MONAI's but noise and perturbation (`medfed.transforms.big_aug`, where the ranges are explained). They run
    on the CPU, image by image: on one core 5 colour images of 384 x 384 with masks take about 0.2 s.

    Args:
        probability: of each transform, for each image; 0 is FedAvg, to the bit.
        blur, sharpening, noise, brightness, contrast, perturbation, rotation_deg, scaling: (lowest, highest).
        deformation: largest shift of a control point, as a share of the side; 0 leaves it out.

    There is no official code. The ranges are those of an unofficial port, not checked against the paper; those of blur,
    sharpening amount and contrast are also the defaults of MONAI's transforms. Doubtful:

    - noise with a deviation up to 1 leaves little of an image in [0, 1]. Our default is up to 0.1, MONAI's; the preset
      `paper` has the port's.
    - deformation is ours, as we know no range: 16 x 16 control points are shifted by up to 1 % of the side each, which
      folds nothing. (MONAI's `Rand2DElastic` ripples by 5 % of its spacing even where it should do nothing.)
    - pixels of blur are those of the image as it is trained.

        what                         medfed              paper
        deviation of noise           0 to 0.1            0.1 to 1
    """

    probability: Ratio = 0.5
    noise: NonNegativeRange = (0.0, 0.1)

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {"noise": BigAugRanges.noise}}

    def augment(self, local: LocalRound, batch: Batch) -> Batch:
        """The batch after the nine transforms, on its device; masks and views are moved with their images."""
        if self.probability == 0:
            return batch
        views, masks = list(batch.views), [LABEL] if batch.label.ndim == 4 else []
        steps = build_big_aug(self, batch.image.shape[-1], self.probability, [_view(name) for name in views], masks)
        steps.set_random_state(int(torch.randint(2**31, (), generator=local.rng)))
        own = batch.to(torch.device("cpu"))
        items = {IMAGE_KEY: own.image, **{_view(name): own.views[name] for name in views}}
        items |= dict.fromkeys(masks, own.label)
        done = [steps({key: entry[i] for key, entry in items.items()}) for i in range(len(own.image))]
        moved = {key: _stacked([one[key] for one in done], entry) for key, entry in items.items()}
        views_moved = {name: moved[_view(name)] for name in views}
        return Batch(moved[IMAGE_KEY], moved.get(LABEL, own.label), views_moved).to(batch.image.device)


def _view(name: str) -> str:
    return f"view {name}"


def _stacked(parts: list[Tensor], like: Tensor) -> Tensor:
    """As a plain tensor of the type of `like`, without what MONAI notes beside one."""
    return torch.stack([torch.Tensor.as_subclass(part, Tensor) for part in parts]).to(like.dtype)
