"""Read or change the outputs of named submodules of a network, and add layers to it, without renaming its entries.

A submodule is named by its dotted path, as in `torch.nn.Module.get_submodule`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn


@contextmanager
def capture_features(network: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Collect the outputs of named submodules during the forward passes inside the `with` block.

    This also works if `torch.func.functional_call` calls the network. A second forward pass overwrites the outputs of
    the first one. An output in bfloat16 is converted to float32, also for the next layers, so that a statistic of it is
    precise and the stored tensor is part of the autograd graph.

    Args:
        network: the network that will be called inside the `with` block.
        names: dotted paths of submodules, as for `nn.Module.get_submodule`.

    Yields:
        A dict that the forward pass fills: output tensor by path, not detached from the autograd graph.

    Raises:
        AttributeError: if the network has no submodule of a given path.
    """
    features: dict[str, Tensor] = {}

    def store_as(name: str) -> Callable:
        def hook(module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
            features[name] = output.float() if output.dtype == torch.bfloat16 else output
            return features[name]

        return hook

    with ExitStack() as hooks:
        for name in names:
            handle = network.get_submodule(name).register_forward_hook(store_as(name))
            hooks.callback(handle.remove)
        yield features


def features_at(network: nn.Module, name: str, image: Tensor) -> Tensor:
    """Return the output of a named submodule for a batch, without computing the layers after the submodule.

    Args:
        network: the network to run. Its mode (training or evaluation) is not changed.
        name: dotted path of the submodule, as for `nn.Module.get_submodule`.
        image: (B, C, H, W), the network's input.

    Returns:
        The submodule's output, not detached from the autograd graph.

    Raises:
        AttributeError: if the network has no such submodule.
        ValueError: if the network's forward pass does not call the submodule.
    """

    def stop(module: nn.Module, inputs: tuple, output: Tensor) -> None:
        raise _StopForward(output)

    handle = network.get_submodule(name).register_forward_hook(stop)
    try:
        network(image)
    except _StopForward as reached:
        return reached.output
    finally:
        handle.remove()
    raise ValueError(f"the network's forward pass does not call its submodule '{name}'")


@contextmanager
def replace_output(
    network: nn.Module, changes: Mapping[str, Callable[[Tensor], Tensor]], first: bool = False
) -> Iterator[None]:
    """Replace the outputs of named submodules during the forward passes inside the `with` block.

    Args:
        network: the network that will be called inside the `with` block.
        changes: by dotted path of a submodule, a function of its output, which returns the tensor that the following
            layers get instead. The tensor may have another number of images.
        first: whether the functions run before, instead of after, the forward hooks that the submodules already have.

    Raises:
        AttributeError: if the network has no submodule of a given path.
    """

    def hook(change: Callable[[Tensor], Tensor]) -> Callable:
        return lambda module, inputs, output: change(output)

    with ExitStack() as hooks:
        for name, change in changes.items():
            hooks.callback(network.get_submodule(name).register_forward_hook(hook(change), prepend=first).remove)
        yield


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Set a network to evaluation mode inside the `with` block, and restore the mode of each module after the block."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def insert_layer(network: nn.Module, path: str, layer: nn.Module, name: str) -> None:
    """Insert a layer after a submodule: from now on the submodule's output passes through the layer.

    The layer becomes the submodule `name` of the network. No entry of the state dict is renamed, so the entry names in
    saved weights stay valid. A deep copy of the network uses its own copy of the layer.

    Args:
        network: changed in place.
        path: dotted path of the submodule after which to insert the layer.
        layer: a module that maps one tensor to one tensor.
        name: name for the layer in the network, which must not be the name of an existing attribute.

    Raises:
        AttributeError: if the network has no submodule `path`.
        ValueError: if the network already has an attribute `name`, or the network is an `nn.Sequential` (which would
            call the layer after all others).
    """
    add_submodule(network, layer, name)
    network.get_submodule(path).register_forward_hook(partial(_apply_to_output, layer))


def add_submodule(network: nn.Module, layer: nn.Module, name: str) -> None:
    """Register a layer as the submodule `name` of a network, without calling it in the forward pass."""
    if isinstance(network, nn.Sequential):
        raise ValueError("a layer cannot be added to an nn.Sequential, which would run it as its last layer")
    if hasattr(network, name):
        raise ValueError(f"the network already has a submodule or attribute '{name}'")
    network.add_module(name, layer)


def prepend_layer(network: nn.Module, layer: nn.Module, name: str) -> None:
    """Add a layer that changes the network's input; several such layers run in the order in which they were added."""
    add_submodule(network, layer, name)
    network.register_forward_pre_hook(partial(_apply_to_input, layer))


# A deep copy of a network copies the layer in the `partial` of a hook, too, but not a layer in a nested function.
def _apply_to_input(layer: nn.Module, module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (layer(inputs[0]),)


def _apply_to_output(layer: nn.Module, module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
    return layer(output)


def store_channels_last(network: nn.Module, path: str) -> None:
    """Store the output of a submodule, and so all later feature maps, channels last on a CPU, which may be faster."""
    network.get_submodule(path).register_forward_hook(_channels_last)


def _channels_last(module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
    return output.contiguous(memory_format=torch.channels_last) if output.device.type == "cpu" else output


def input_output_widths(layer: nn.Module) -> tuple[int, int]:
    """Return the numbers of input and output features of a linear layer, or of channels of a 2-D convolution."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if isinstance(layer, nn.Conv2d):
        return layer.in_channels, layer.out_channels
    raise ValueError(f"the layer must be nn.Linear or nn.Conv2d, got {type(layer).__name__}")


def output_channels(stage: nn.Module) -> int:
    """Return the number of output channels of the last `nn.Conv2d` in `stage.modules()`."""
    return [part for part in stage.modules() if isinstance(part, nn.Conv2d)][-1].out_channels


class _StopForward(Exception):
    """Ends a forward pass as soon as the wanted output is known."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output
