"""A batch of images and labels, as samples give it and methods change it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Raw images (B, C, H, W), non-negative, in [0, 1], not standardised; labels as the task has them.

    views: other pictures of the same scenes, each (B, C, H, W), by name: a method's samples may give them (`expand`),
        and whatever moves the images moves them alike.
    """

    image: Tensor
    label: Tensor
    views: dict[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device) -> Batch:
        return Batch(self.image.to(device), self.label.to(device), {n: v.to(device) for n, v in self.views.items()})

    def transform(self, move: Callable[[Tensor], Tensor], label: Tensor) -> Batch:
        """Images and views through the same `move`, with this label."""
        return Batch(move(self.image), label, {name: move(view) for name, view in self.views.items()})
