"""Weights from a file into a network: all of them or none, but for the head, which may have other classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.functional.weights import first_non_finite
from medfed.networks.vgg import read_state_dict

MAX_LISTED_MISMATCHES = 3


def load_matching_weights(
    network: nn.Module, path: Path, optional_modules: Sequence[str], rename: Callable[[str], str]
) -> list[str]:
    """Load a state dict into a network, in place; it stays as it was if this raises.

    A network for one channel takes the sum of a colour file's first convolution over red, green and blue: it then does
    with a grey image what the colour network does with the same image in three channels. The mean would be a third of
    that, and the statistics of the normalisation behind it would no longer fit.

    Args:
        path: a `.safetensors` file, or a `.pt` or `.pth` of tensors alone; `num_batches_tracked` may be missing.
        optional_modules: paths of modules that keep the network's weights where the file does not fit.
        rename: the network's name of an entry, from the file's.

    Returns:
        A sentence for everything that was not taken as it stands.

    Raises:
        UserError: with the first entries that are missing, unknown, of another shape or not finite.
    """
    if not path.is_file():
        raise UserError(f"network.weights: {path} is no file; name a state dict as .safetensors, .pt or .pth, as seen "
                        f"from {Path.cwd()}")
    entries = {rename(name): entry for name, entry in read_state_dict(path).items()}
    notices = _sum_colour_channels(network, entries)
    state = network.state_dict()
    fresh = _skipped_modules(state, entries, optional_modules)
    wanted = {name: entry for name, entry in state.items() if _module_path(name) not in fresh}
    taken = {name: entry for name, entry in entries.items() if _module_path(name) not in fresh}
    if faults := list(_mismatches(wanted, taken)):
        more = f" and {len(faults) - MAX_LISTED_MISMATCHES} more" if len(faults) > MAX_LISTED_MISMATCHES else ""
        raise UserError(
            f"network.weights: {path} is of another network: {'; '.join(faults[:MAX_LISTED_MISMATCHES])}{more}; found "
            f"{len(entries)} entries, expected {len(state)}; name a file of the same architecture, or leave it out"
        )
    if name := first_non_finite(taken):
        raise UserError(f"network.weights: {path} is not finite (first in '{name}'); name another file")
    network.load_state_dict(state | taken)
    return [f"{path}: {notice}" for notice in [*notices, *fresh.values()]]


def _sum_colour_channels(network: nn.Module, entries: dict[str, Tensor]) -> list[str]:
    """Sum the first convolution's weights over colours, in `entries`, where the network has one channel for them."""
    convolutions = (found for found in network.named_modules() if isinstance(found[1], nn.Conv2d))
    first, layer = next(convolutions, ("", None))
    found = entries.get(f"{first}.weight")
    if layer is None or found is None or layer.in_channels != 1 or found.ndim != 4 or found.shape[1] != 3:
        return []
    entries[f"{first}.weight"] = found.sum(1, keepdim=True)
    return [f"'{first}.weight' is for colour; summed over red, green and blue for grey images"]


def _skipped_modules(
    state: Mapping[str, Tensor], entries: Mapping[str, Tensor], optional_modules: Sequence[str]
) -> dict[str, str]:
    """Modules below `optional_modules` of which an entry is missing or of another shape, and that in words."""
    fresh: dict[str, str] = {}
    for name, entry in state.items():
        if not name.startswith(tuple(f"{module}." for module in optional_modules)):
            continue
        theirs = f"{tuple(entries[name].shape)} there" if name in entries else "not there"
        if theirs != f"{tuple(entry.shape)} there":
            fresh.setdefault(_module_path(name), f"'{name}' is {theirs} and {tuple(entry.shape)} here; it starts fresh")
    return fresh


def _module_path(name: str) -> str:
    return name.rpartition(".")[0]


def _mismatches(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> Iterator[str]:
    for name, entry in expected.items():
        if name not in found:
            if not name.endswith("num_batches_tracked"):
                yield f"'{name}' is missing"
        elif found[name].shape != entry.shape:
            yield f"'{name}' is {tuple(found[name].shape)}, expected {tuple(entry.shape)}"
    yield from (f"'{name}' is unknown" for name in found if name not in expected)
