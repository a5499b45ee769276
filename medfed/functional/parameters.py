"""Which entries of a network are learned."""

from __future__ import annotations

from torch import nn


def trained(network: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that take a gradient, by name: no buffers, and none that is frozen."""
    return {name: entry for name, entry in network.named_parameters() if entry.requires_grad}
