"""Arithmetic on state dicts, and the names of the entries that need special treatment when weights are averaged.

A state dict maps entry names to tensors. Sums run in float64; integer entries, such as BatchNorm's counters of batches,
are never averaged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

Weights = Mapping[str, Tensor]
DTYPES = {  # the dtypes of real numbers, by their names in the safetensors format
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def average(weights: Sequence[Weights], fractions: Tensor) -> dict[str, Tensor]:
    """Return the weighted average of state dicts.

    Implements the aggregation of FedAvg (McMahan et al., "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", AISTATS 2017, https://arxiv.org/abs/1602.05629). Integer entries, such as BatchNorm's counters
    of batches, get the largest value.

    Args:
        weights: K state dicts with the same entries.
        fractions: (K,), the weight of each state dict in the average, at least 0, with sum 1.

    Returns:
        A new state dict with the shapes and dtypes of the first one. Sums run in float64, in the given order.

    Raises:
        ValueError: if there are no state dicts, the fractions are negative or do not sum to 1, or the state dicts
            differ in name, shape or dtype of their entries.
    """
    if not weights:
        raise ValueError("weights must hold at least one state dict, got none")
    if fractions.shape != (len(weights),) or bool((fractions < 0).any()) or abs(float(fractions.sum()) - 1) > 1e-6:
        raise ValueError(
            f"fractions must be {len(weights)} numbers of at least 0 that sum to 1, got {fractions.tolist()}"
        )
    for other in weights[1:]:
        check_same_entries(weights[0], other)
    averaged = {}
    for name, first in weights[0].items():
        entries = [other[name] for other in weights]
        if first.is_floating_point():
            zeros = torch.zeros(first.shape, dtype=torch.float64)
            averaged[name] = add_scaled(zeros, entries, fractions.tolist()).to(first.dtype)
        else:
            averaged[name] = torch.stack(entries).amax(dim=0)
    return averaged


def add_scaled(start: Tensor, changes: Iterable[Tensor], scales: Iterable[float]) -> Tensor:
    """Return the sum of a tensor and K scaled tensors: start + sum_k scale_k * change_k.

    Args:
        start: a tensor of any shape.
        changes: K tensors of the same shape as `start`.
        scales: K factors.

    Returns:
        A new tensor in the shape and dtype of `start`. The sum runs in float64, in the given order.
    """
    total = start.to(torch.float64, copy=True)
    for change, scale in zip(changes, scales, strict=True):
        total.add_(change, alpha=scale)
    return total.to(start.dtype)


def add_scaled_changes(start: Tensor, ends: Sequence[Tensor], scales: Iterable[float]) -> Tensor:
    """Return start + sum_k scale_k * (end_k - start), computed in float64, in the dtype of the first end."""
    before = start.to(torch.float64)
    return add_scaled(before, [end.to(torch.float64) - before for end in ends], scales).to(ends[0].dtype)


def select_prefix(entries: Weights, prefix: str) -> dict[str, Tensor]:
    """Return the entries whose names start with `prefix` (such as "bank/"), without the prefix in their names."""
    return {name.removeprefix(prefix): entry for name, entry in entries.items() if name.startswith(prefix)}


def add_prefix(entries: Weights, prefix: str) -> dict[str, Tensor]:
    return {prefix + name: entry for name, entry in entries.items()}


def squared_distance(entries: Weights, start: Weights) -> Tensor:
    """Return the squared Euclidean distance between two sets of weights: the sum of squared differences.

    Args:
        entries: floating-point tensors by name.
        start: tensors by name, with at least the names of `entries` and the same shapes. Further entries are ignored.

    Returns:
        Scalar, at least 0. Gradients flow to `entries` and `start`.
    """
    terms = ((entry - start[name]).square().sum() for name, entry in entries.items())
    return sum(terms, torch.zeros(()))


def check_same_entries(expected: Weights, given: Weights) -> None:
    """Raise a ValueError naming the first entry of `given` that is missing, unknown, or of another shape or dtype."""
    if missing := sorted(set(expected) - set(given)):
        raise ValueError(f"the state dict lacks expected entries ({len(missing)}), such as '{missing[0]}'")
    if extra := sorted(set(given) - set(expected)):
        raise ValueError(f"the state dict contains unknown entries ({len(extra)}), such as '{extra[0]}'")
    for name, entry in expected.items():
        other = given[name]
        if entry.shape != other.shape or entry.dtype != other.dtype:
            raise ValueError(
                f"'{name}' is {tuple(other.shape)} {other.dtype}, expected {tuple(entry.shape)} {entry.dtype}"
            )


def first_non_finite(weights: Weights) -> str | None:
    """Return the name of the first entry that contains a NaN or an infinity, or None if all entries are finite."""
    for name, entry in weights.items():
        if entry.is_floating_point() and not bool(torch.isfinite(entry).all()):
            return name
    return None


def batch_norm_layers(network: nn.Module) -> dict[str, _BatchNorm]:
    """Return all BatchNorm layers of a network (1-D, 2-D, 3-D and synchronised) by dotted path."""
    return {path: module for path, module in network.named_modules() if isinstance(module, _BatchNorm)}


def batch_norm_entries(network: nn.Module) -> frozenset[str]:
    """Return the state-dict names of all weights and buffers of BatchNorm layers, recognised by their type.

    (A search for "bn" in the names would miss `downsample.1` in a ResNet and `norm` in a DenseNet.)
    """
    names = set()
    for path, module in batch_norm_layers(network).items():
        names |= {f"{path}.{entry}" if path else entry for entry in module.state_dict()}
    return frozenset(names)


def running_variances(network: nn.Module) -> frozenset[str]:
    """Return the state-dict names of the running variances of all BatchNorm and InstanceNorm layers that track them."""
    return frozenset(
        f"{path}.running_var" if path else "running_var"
        for path, module in network.named_modules()
        if isinstance(module, _NormBase) and module.running_var is not None
    )


def trainable_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient and are part of the network's state dict (not copied), by name.

    Parameters that a layer keeps out of the state dict, such as FedSR's Gaussian distributions of the classes, stay at
    their site and are not aggregated.
    """
    known = network.state_dict().keys()
    return {name: entry for name, entry in network.named_parameters() if entry.requires_grad and name in known}


def change_norm(start: Weights, end: Weights) -> float:
    """Return the Euclidean norm of `end` - `start` over all floating-point entries of `end` together."""
    return math.hypot(
        *(
            float(torch.linalg.vector_norm(entry.to(torch.float64) - start[name].to(torch.float64)))
            for name, entry in end.items()
            if entry.is_floating_point()
        )
    )


def trimmed_mean(weights: Sequence[Weights], cut: int) -> dict[str, Tensor]:
    """Return the element-wise mean of K state dicts without the `cut` smallest and the `cut` largest values of each
    element, in float64. Integer entries get the largest value.

    With cut = 0 this is the mean, and with the largest cut below K / 2 the median.
    """
    if not 0 <= 2 * cut < len(weights):
        raise ValueError(f"cut must be at least 0 and below half of {len(weights)} state dicts, got {cut}")
    if cut == 0:
        return average(weights, torch.full((len(weights),), 1 / len(weights), dtype=torch.float64))
    for other in weights[1:]:
        check_same_entries(weights[0], other)
    merged = {}
    for name, first in weights[0].items():
        entries = torch.stack([state[name] for state in weights])
        if first.is_floating_point():
            ascending = entries.to(torch.float64).sort(dim=0).values
            merged[name] = ascending[cut : len(weights) - cut].mean(dim=0).to(first.dtype)
        else:
            merged[name] = entries.amax(dim=0)
    return merged
