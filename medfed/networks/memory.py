"""Estimate, before anything is allocated, how much memory a network and its training step need at least."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

BYTES_PER_PARAMETER = 16  # in float32: the weight, its gradient, and Adam's two moments
STORING_LAYERS = ("conv", "linear", "norm")  # parts of the names of layers whose outputs training keeps
# On the device "meta", these layers of PyTorch take most of the time; their outputs have the shape of their inputs.
SAME_SHAPE = (nn.BatchNorm2d, nn.InstanceNorm2d, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class MemoryNeeds:
    """Lower bounds of the memory in bytes that training needs.

    Args:
        parameters: for the weights, their gradients and the moments of the optimizer; infinite if they cannot be
            counted in 64 bits.
        per_image: for the feature maps of one image of a training step; 0 if it is not known.
    """

    parameters: float
    per_image: float


def estimate_memory(build: Callable[[], nn.Module], channels: int, image_size: int) -> MemoryNeeds | None:
    """Return how much memory training needs at least, without allocating it: on PyTorch's device "meta".

    Args:
        build: function that builds the network.
        channels: number of image channels.
        image_size: side of the images in pixels.

    Returns:
        The lower bounds; None if the network cannot be built without memory.
    """
    try:
        with torch.device("meta"):
            network = build()
    except (RuntimeError, OverflowError, TypeError) as error:
        return MemoryNeeds(float("inf"), 0) if "overflow" in str(error).lower() else None
    except Exception:  # building it with memory reports what is wrong
        return None
    n_bytes = BYTES_PER_PARAMETER * sum(parameter.numel() for parameter in network.parameters())
    sizes: list[int] = []

    def add_size(layer: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, torch.Tensor):
            sizes.append(output.numel() * 4)

    for layer in network.modules():
        if any(part in type(layer).__name__.lower() for part in STORING_LAYERS) and not list(layer.children()):
            layer.register_forward_hook(add_size)
        if type(layer) in SAME_SHAPE:
            layer.forward = nn.Identity().forward
    try:
        with torch.no_grad():
            network(torch.empty(2, channels, image_size, image_size, device="meta"))
    except Exception:
        return MemoryNeeds(n_bytes, 0)
    return MemoryNeeds(n_bytes, sum(sizes) / 2)
