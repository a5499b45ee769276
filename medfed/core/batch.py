"""A batch of images and labels, as training samples provide it and as methods change it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from medfed.core.device import to_device


@dataclass(frozen=True)
class Batch:
    """A batch of B images with their labels.

    Args:
        image: (B, C, H, W), intensities in [0, 1], not standardised.
        label: masks (B, S, H, W) of 0 and 1, one channel per structure, or class numbers (B,), int64.
        views: other versions of the same images, such as those in the style of another site (`Method.expand`), by name,
            each (B, C, H, W). A geometric augmentation of `image` is applied to the views too.
        moments: (B, 2, C), mean and standard deviation of each channel over the volume that each image is a slice of,
            before any augmentation; None unless `data.standardise` is volume.
    """

    image: Tensor
    label: Tensor
    views: dict[str, Tensor] = field(default_factory=dict)
    moments: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        views = {name: to_device(view, device) for name, view in self.views.items()}
        moments = None if self.moments is None else to_device(self.moments, device)
        return Batch(to_device(self.image, device), to_device(self.label, device), views, moments)

    def transform(self, function: Callable[[Tensor], Tensor], label: Tensor) -> Batch:
        """Return a new batch: apply a function of (B, C, H, W) to the images and every view, and replace the label."""
        views = {name: function(view) for name, view in self.views.items()}
        return Batch(function(self.image), label, views, self.moments)
