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
        label: segmentation: masks (B, S, H, W) of 0 and 1, one channel per structure. Classification: class numbers
            (B,), int64.
        views: other versions of the same images, by name, each (B, C, H, W). An example is the images in the style of
            another site. A method may add views to its samples (`Method.expand`). A geometric augmentation of `image`
            is applied to the views too.
        moments: (B, 2, C), mean and standard deviation of each channel over the volume that each image is a slice of,
            before any augmentation or restyling. The network standardises an image by its moments if
            `data.standardise` is volume; with the other words the value is None.
    """

    image: Tensor
    label: Tensor
    views: dict[str, Tensor] = field(default_factory=dict)
    moments: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        """Return a copy of the batch with all its tensors on the given device."""
        views = {name: to_device(view, device) for name, view in self.views.items()}
        moments = None if self.moments is None else to_device(self.moments, device)
        return Batch(to_device(self.image, device), to_device(self.label, device), views, moments)

    def transform(self, function: Callable[[Tensor], Tensor], label: Tensor) -> Batch:
        """Apply one function to the images and to every view, and replace the label.

        A view is another version of the same images, such as the images in the style of another site (`views`).

        Args:
            function: maps (B, C, H, W) to (B, C, H', W'). It is called once for the images and once for each view.
            label: the label of the new batch, already transformed: masks (B, S, H', W') or class numbers (B,).

        Returns:
            A new batch, with the same moments. The original batch stays unchanged.
        """
        views = {name: function(view) for name, view in self.views.items()}
        return Batch(function(self.image), label, views, self.moments)
