"""Which entries of a network are learned."""

from __future__ import annotations

from torch import nn


def trained(network: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that take a gradient, by name: no buffers, none that is frozen, none outside the state dict.

    The last are a method's own at a site (FedSR's), and no business of another's.
    """
    known = network.state_dict().keys()
    return {name: entry for name, entry in network.named_parameters() if entry.requires_grad and name in known}
