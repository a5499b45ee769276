"""Before memory is used: estimate how much a network and its training step need; limit the size of a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

BYTES_PER_PARAMETER = 16  # in float32: the weight, its gradient, and Adam's two moments
MAX_TENSORS = 5_000  # that are created while a network is built; DenseNet264 creates 1,326
STORING_LAYERS = ("conv", "linear", "norm")  # parts of the names of layers whose outputs training keeps
# The functions of PyTorch that create a tensor of a given size.
CREATORS = [
    getattr(torch, name) for name in "arange empty eye full linspace ones rand randint randn randperm zeros".split()
]


@dataclass(frozen=True)
class MemoryNeeds:
    """Lower bounds of the memory in bytes that training needs."""

    parameters: float  # for the weights, their gradients and the optimizer's moments; infinite beyond 64 bits
    per_image: float  # for the feature maps of one image of a training step; 0 if it is not known


def estimate_memory(build: Callable[[], nn.Module], channels: int, size: Sequence[int]) -> MemoryNeeds | None:
    """Return how much memory training on images of `size` needs at least, by PyTorch's device "meta"; or None."""
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
    try:
        with torch.no_grad():
            network(torch.empty(2, channels, *size, device="meta"))
    except Exception:
        return MemoryNeeds(n_bytes, 0)
    return MemoryNeeds(n_bytes, sum(sizes) / 2)


class SizeLimit(TorchFunctionMode):
    """Context manager that raises a ValueError before a thread creates too many values or `MAX_TENSORS` tensors."""

    def __init__(self, max_values: int) -> None:
        super().__init__()
        self.max_values, self.n_values, self.n_tensors = max_values, 0, 0

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in CREATORS:
            described = {key: value for key, value in kwargs.items() if key != "generator"}
            self.n_values += func(*args, **{**described, "device": "meta"}).numel()
            self.n_tensors += 1
            if self.n_values > self.max_values:
                raise ValueError(f"the network has more than {self.max_values:,} values")
            if self.n_tensors > MAX_TENSORS:
                raise ValueError(f"the network has more than {MAX_TENSORS:,} tensors")
        return func(*args, **kwargs)
