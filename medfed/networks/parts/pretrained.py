"""Load pretrained weights from a file into a network: either all entries fit, or nothing is changed."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.core.files import check_checksums
from medfed.functional.weights import DTYPES, first_non_finite

MAX_LISTED_MISMATCHES = 3
MAX_EXPANSION = 4  # bytes of the tensors for each byte of the file; layers that share weights store them once


def load_matching_weights(
    network: nn.Module, path: Path, optional_modules: Sequence[str], rename: Callable[[str], str]
) -> list[str]:
    """Load a file of pretrained weights into a network; after an error, the network is unchanged.

    Returns one sentence for each layer whose weights were not loaded, because it belongs to `optional_modules` and does
    not fit, or were summed over red, green and blue, because the network takes grey images. `rename` maps an entry's
    name in the file to that in the network, "" if it is not used. BatchNorm's counters may be missing in the file.
    """
    if not path.is_file():
        raise UserError(
            f"network.weights: {path} is not a file; name a state dict as .safetensors, .pt or .pth, "
            f"relative to {Path.cwd()}"
        )
    entries = {new: entry for name, entry in read_state_dict(path).items() if (new := rename(name))}
    notices = _sum_colour_channels(network, entries)
    skipped = load_entries(network, entries, f"network.weights: {path}", optional_modules)
    return [f"{path}: {notice}" for notice in [*notices, *skipped]]


def load_entries(
    module: nn.Module, entries: Mapping[str, Tensor], source: str, optional_modules: Sequence[str] = ()
) -> list[str]:
    """Set the weights of a module; return a sentence for each of `optional_modules` that keeps its own.

    UserError, which starts with `source`, if the entries do not fit or are not finite; nothing is changed then.
    """
    state = module.state_dict()
    skipped = _skipped_modules(state, entries, optional_modules)
    needed = {name: entry for name, entry in state.items() if _module_path(name) not in skipped}
    taken = {name: entry for name, entry in entries.items() if _module_path(name) not in skipped}
    if mismatches := list(_mismatches(needed, taken)):
        n_more = len(mismatches) - MAX_LISTED_MISMATCHES
        more = f" and {n_more} more" if n_more > 0 else ""
        raise UserError(
            f"{source} belongs to another network: {'; '.join(mismatches[:MAX_LISTED_MISMATCHES])}{more}; found "
            f"{len(entries)} entries, expected {len(state)}; name a file of the same architecture"
        )
    if name := first_non_finite(taken):
        raise UserError(f"{source} contains NaN or infinite values, first in the entry '{name}'; name another file")
    module.load_state_dict(state | taken)
    return list(skipped.values())


def read_state_dict(path: Path, key: str = "") -> dict[str, Tensor]:
    """Read a state dict from `.safetensors`, `.pt` or `.pth` without running any code that the file may contain.

    `key` is the entry that holds the state dict if the file is a checkpoint, such as "model" of MONAI. A UserError is
    raised if the file is missing or damaged, contains anything other than tensors by name, or could fill the memory.
    """
    try:
        if path.suffix == ".safetensors":
            content = safetensors.torch.load_file(path)
        else:
            if zipfile.is_zipfile(path):  # and not the format of PyTorch before 1.6, which has no checksums
                with open(path, "rb") as file:
                    check_checksums(file, str(path), "copy it again")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{path}: not found; expected a state dict as .pth, .pt or .safetensors") from None
    except UserError:
        raise
    except Exception as error:  # includes the unpickler's errors, whose module is not imported here
        # PyTorch's own message is not shown: it advises to load the file in a way that runs code in it.
        raise UserError(
            f"{path}: cannot be read as a state dict ({type(error).__name__}); name a .safetensors, or a "
            ".pt or .pth that contains only tensors"
        ) from None
    entries = content.get(key, content) if isinstance(content, Mapping) else None
    if not isinstance(entries, Mapping) or not all(isinstance(entry, Tensor) for entry in entries.values()):
        raise UserError(f"{path}: is not a plain state dict; expected tensors by name, as model.state_dict() returns")
    check_plain_tensors(entries, path)
    # A tensor may repeat the elements that are stored, and several tensors may share them.
    size, n_stored = sum(entry.numel() * entry.element_size() for entry in entries.values()), path.stat().st_size
    if size > MAX_EXPANSION * n_stored:
        raise UserError(
            f"{path}: has {n_stored:,} bytes, but its tensors would need {size:,} in memory; save the weights with "
            "torch.save(model.state_dict(), FILE)"
        )
    return {str(name): entry.detach() for name, entry in entries.items()}


def check_plain_tensors(entries: Mapping[Any, Tensor], path: Path) -> None:
    """UserError if one of a file's tensors is sparse or not of a dtype that medfed sends, such as float8."""
    for name, entry in entries.items():
        if entry.layout != torch.strided or entry.device.type != "cpu" or entry.dtype not in DTYPES.values():
            raise UserError(
                f"{path}: {str(name)[:60]!r} is not a plain tensor of numbers ({entry.layout}, {entry.dtype}); save "
                "dense weights, as float32, with torch.save(model.state_dict(), FILE)"
            )


def _sum_colour_channels(network: nn.Module, entries: dict[str, Tensor]) -> list[str]:
    """Sum the first convolution's weights over the colours, if the network takes one channel; both compute the same."""
    convolutions = (item for item in network.named_modules() if isinstance(item[1], nn.Conv2d))
    path, layer = next(convolutions, ("", None))
    weight = entries.get(f"{path}.weight")
    if layer is None or weight is None or layer.in_channels != 1 or weight.ndim != 4 or weight.shape[1] != 3:
        return []
    entries[f"{path}.weight"] = weight.sum(1, keepdim=True)
    return [f"'{path}.weight' is for colour images; it was summed over red, green and blue for grey images"]


def _skipped_modules(
    state: Mapping[str, Tensor], entries: Mapping[str, Tensor], optional_modules: Sequence[str]
) -> dict[str, str]:
    """Return the optional modules that the file does not fit, each with a sentence that says why."""
    skipped: dict[str, str] = {}
    for name, entry in state.items():
        if not name.startswith(tuple(f"{module}." for module in optional_modules)):
            continue
        shape = tuple(entries[name].shape) if name in entries else None
        if shape != tuple(entry.shape):
            in_file = "is missing in the file" if shape is None else f"is {shape} in the file"
            sentence = f"'{name}' {in_file} and {tuple(entry.shape)} in the network; it keeps its random weights"
            skipped.setdefault(_module_path(name), sentence)
    return skipped


def _module_path(name: str) -> str:
    """The path of the submodule that has the entry `name`."""
    return name.rpartition(".")[0]


def _mismatches(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield one sentence for each entry that is missing in `given`, has another shape, or is unknown."""
    for name, entry in expected.items():
        if name not in given:
            if not name.endswith("num_batches_tracked"):
                yield f"'{name}' is missing"
        elif given[name].shape != entry.shape:
            yield f"'{name}' is {tuple(given[name].shape)}, expected {tuple(entry.shape)}"
    yield from (f"'{name}' is unknown" for name in given if name not in expected)
