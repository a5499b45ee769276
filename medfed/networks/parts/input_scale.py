"""First layer of a network for `data.standardise: dataset`: it standardises images by constants of all source sites.

As a layer, the constants travel and are stored with the weights: in messages, checkpoints, and the final model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from medfed.functional.hooks import prepend_layer
from medfed.functional.standardisation import INPUT_LAYER, standardise_by


class InputScale(nn.Module):
    """Layer that subtracts a constant `mean` (C,) from the image channels and divides them by a constant `std` (C,)."""

    mean: Tensor
    std: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("std", torch.ones(channels))

    def forward(self, image: Tensor) -> Tensor:
        return standardise_by(image, torch.stack([self.mean, self.std])[None])


def prepend_input_scale(network: nn.Module, channels: int) -> None:
    """Insert an `InputScale` before the first layer of a network; no entry of its state dict is renamed."""
    prepend_layer(network, InputScale(channels), INPUT_LAYER)
