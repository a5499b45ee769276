"""Looking at, or changing, what flows through named places of a network, without renaming any of its entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn


@contextmanager
def tapped(network: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Collect the outputs of the named submodules during the forward passes inside the block.

    Forward hooks survive `torch.func.functional_call`, so this also works with fast weights. A second forward pass
    overwrites the first one's outputs.

    >>> with tapped(network, ("upcat_1", "upcat_2")) as seen:
    ...     logits = network(images)
    >>> seen["upcat_1"].shape  # (B, C, H, W)
    """
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable:
        def hook(module: nn.Module, inputs: tuple, output: Tensor) -> None:
            seen[name] = output

        return hook

    with ExitStack() as hooks:
        for name in names:
            handle = network.get_submodule(name).register_forward_hook(keep(name))
            hooks.callback(handle.remove)
        yield seen


def insert(network: nn.Module, seam: str, layer: nn.Module, name: str) -> None:
    """Put a layer behind a seam: what the seam's module returns passes through `layer` from now on.

    The layer becomes `network.<name>`, so its entries are added to the state dict and all others keep their names
    (inserting into a `Sequential` would renumber the rest, and no bundle would load any more).

    Raises:
        ValueError: if the network already has something called `name`, or is a `Sequential`, which would run the
            layer as its last one.
    """
    if isinstance(network, nn.Sequential):
        raise ValueError("a layer cannot be added to a Sequential: it would run at its end")
    if hasattr(network, name):
        raise ValueError(f"the network already has a part called '{name}'")
    network.add_module(name, layer)
    network.get_submodule(seam).register_forward_hook(lambda module, inputs, output: layer(output))
