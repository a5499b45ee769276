"""First layer of a network for `data.standardise: dataset`: it standardises images by constants of all source sites.

As a layer, the constants travel and are stored with the weights: in messages, checkpoints, and the final model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from medfed.functional.hooks import prepend_layer
from medfed.functional.standardisation import INPUT_LAYER, standardise_by


class InputScale(nn.Module):
    """Layer that subtracts a constant from each image channel and divides the channel by another constant.

    The constants are the buffers `mean` and `std`, (C,) each for C channels. They are no parameters, so training does
    not change them. With the first values 0 and 1, images pass unchanged.

    Args:
        channels: C, number of channels of the images.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("std", torch.ones(channels))

    def forward(self, image: Tensor) -> Tensor:
        """Return standardised images, (B, C, H, W), for images (B, C, H, W) in [0, 1]."""
        return standardise_by(image, torch.stack([self.mean, self.std])[None])


def prepend_input_scale(network: nn.Module, channels: int) -> None:
    """Insert an `InputScale` before the first layer of a network, in place; no entry of its state dict is renamed.

    Args:
        network: changed in place. Its state dict gets the entries `input_scale.mean` and `input_scale.std`.
        channels: number of channels of the images.

    Raises:
        ValueError: if the network has such a layer already.
    """
    prepend_layer(network, InputScale(channels), INPUT_LAYER)
