"""A batch of images and labels, as samples give it and methods change it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Raw images (B, C, H, W), non-negative, in [0, 1], not standardised; labels as the task has them."""

    image: Tensor
    label: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(self.image.to(device), self.label.to(device))
