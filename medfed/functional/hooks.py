"""Looking at, or changing, what flows through named places of a network, without renaming any of its entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn


@contextmanager
def capture_features(network: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
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


def features_at(network: nn.Module, name: str, image: Tensor) -> Tensor:
    """What the named submodule returns for these images; nothing behind it is computed."""

    def stop(module: nn.Module, inputs: tuple, output: Tensor) -> None:
        raise _StopForward(output)

    handle = network.get_submodule(name).register_forward_hook(stop)
    try:
        network(image)
    except _StopForward as reached:
        return reached.output
    finally:
        handle.remove()
    raise ValueError(f"the network does not use its part '{name}'")


@contextmanager
def replace_output(
    network: nn.Module, changes: Mapping[str, Callable[[Tensor], Tensor]], first: bool = False
) -> Iterator[None]:
    """Put functions behind named submodules during the forward passes inside the block: what one returns goes on.

    A function may change the number of images (oversampling): the rest of the network then sees as many.

    Args:
        first: before whatever was hooked to the same modules earlier, such as a layer that reads the map; else after
            it, in place of what layers there made.
    """

    def hook(change: Callable[[Tensor], Tensor]) -> Callable:
        return lambda module, inputs, output: change(output)

    with ExitStack() as hooks:
        for name, change in changes.items():
            hooks.callback(network.get_submodule(name).register_forward_hook(hook(change), prepend=first).remove)
        yield


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; every module has its own mode again afterwards."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def insert_layer(network: nn.Module, seam: str, layer: nn.Module, name: str) -> None:
    """Put a layer behind a seam: what the seam's module returns passes through `layer` from now on.

    The layer becomes `network.<name>`, so its entries are added to the state dict and all others keep their names
    (inserting into a `Sequential` would renumber the rest, and no bundle would load any more). A deep copy of the
    network runs its own copy of the layer.

    Raises:
        ValueError: if the network already has something called `name`, or is a `Sequential`, which would run the
            layer as its last one.
    """
    add_submodule(network, layer, name)
    network.get_submodule(seam).register_forward_hook(_LayerHook(layer))


def add_submodule(network: nn.Module, layer: nn.Module, name: str) -> None:
    """Make a layer the part `name` of a network, without running it; ValueError as in `insert`."""
    if isinstance(network, nn.Sequential):
        raise ValueError("a layer cannot be added to a Sequential: it would run at its end")
    if hasattr(network, name):
        raise ValueError(f"the network already has a part called '{name}'")
    network.add_module(name, layer)


def input_output_widths(layer: nn.Module) -> tuple[int, int]:
    """How many features a linear layer or a convolution takes and returns; ValueError for another module."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if isinstance(layer, nn.Conv2d):
        return layer.in_channels, layer.out_channels
    raise ValueError(f"{type(layer).__name__} is neither a linear layer nor a convolution")


def output_channels(stage: nn.Module) -> int:
    """How many channels a stage returns: those of its last convolution."""
    return [part for part in stage.modules() if isinstance(part, nn.Conv2d)][-1].out_channels


class _StopForward(Exception):
    """Leaves a forward pass where the output is known."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output


class _LayerHook:
    """A forward hook that knows its layer as an attribute, so that copying the network copies the bond."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        return self.layer(output)
