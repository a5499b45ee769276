"""BigAug (Zhang et al., TMI 2020): nine strong random changes of each image, in place of other hospitals' images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from medfed.core.batch import Batch
from medfed.federation.local_round import LocalRound
from medfed.federation.method import Method
from medfed.transforms.big_aug import IMAGE, Range, Ranges, big_aug

LABEL = "label"


@dataclass(frozen=True)
class BigAug(Method):
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

    probability: float = 0.5
    blur: Range = Ranges.blur
    sharpening: Range = Ranges.sharpening
    noise: Range = (0.0, 0.1)
    brightness: Range = Ranges.brightness
    contrast: Range = Ranges.contrast
    perturbation: Range = Ranges.perturbation
    rotation_deg: Range = Ranges.rotation_deg
    scaling: Range = Ranges.scaling
    deformation: float = Ranges.deformation

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {"noise": Ranges.noise}}

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability must lie in [0, 1], got {self.probability}")
        if not 0 <= self.deformation < 0.5:
            raise ValueError(f"deformation must lie in [0, 0.5), got {self.deformation}")
        for name in (entry.name for entry in fields(Ranges) if entry.name != "deformation"):
            low, high = getattr(self, name)
            if not low <= high:
                raise ValueError(f"{name} must be (lowest, highest), got {[low, high]}")
        for name in ("sharpening", "noise"):
            if getattr(self, name)[0] < 0:
                raise ValueError(f"{name} must be at least 0, got {list(getattr(self, name))}")
        for name in ("blur", "contrast", "scaling"):
            if getattr(self, name)[0] <= 0:
                raise ValueError(f"{name} must be above 0, got {list(getattr(self, name))}")

    def augment(self, local: LocalRound, batch: Batch) -> Batch:
        if self.probability == 0:
            return batch
        views, masks = list(batch.views), [LABEL] if batch.label.ndim == 4 else []
        ranges = Ranges(**{entry.name: getattr(self, entry.name) for entry in fields(Ranges)})
        steps = big_aug(ranges, batch.image.shape[-1], self.probability, [_view(name) for name in views], masks)
        steps.set_random_state(int(torch.randint(2**31, (), generator=local.rng)))
        own = batch.to(torch.device("cpu"))
        moving = {_view(name): own.views[name] for name in views} | dict.fromkeys(masks, own.label)
        items = {IMAGE: own.image, **moving}
        done = [steps({key: entry[i] for key, entry in items.items()}) for i in range(len(own.image))]
        found = {key: _stacked([one[key] for one in done], entry) for key, entry in items.items()}
        moved = Batch(found[IMAGE], found.get(LABEL, own.label), {name: found[_view(name)] for name in views})
        return moved.to(batch.image.device)


def _view(name: str) -> str:
    return f"view {name}"


def _stacked(parts: list[Tensor], like: Tensor) -> Tensor:
    """As a plain tensor of the type of `like`, without what MONAI notes beside one."""
    return torch.stack([torch.Tensor.as_subclass(part, Tensor) for part in parts]).to(like.dtype)
