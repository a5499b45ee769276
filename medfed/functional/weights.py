"""Arithmetic on state dicts, safe for integer entries and exact enough for averages over many sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

Weights = Mapping[str, Tensor]


def average(weights: Sequence[Weights], shares: Tensor) -> dict[str, Tensor]:
    """sum_k share_k w_k for floating-point entries; the maximum for integers (BatchNorm's counters).

    Args:
        weights: K state dicts with the same entries.
        shares: (K,) at least 0, summing to 1.

    Returns:
        A new state dict in the dtypes of the first one; sums run in float64, in the given order.

    Raises:
        ValueError: if there is nothing to average, the shares are no shares, or the entries differ.
    """
    if not weights:
        raise ValueError("there are no weights to average")
    if shares.shape != (len(weights),) or bool((shares < 0).any()) or abs(float(shares.sum()) - 1) > 1e-6:
        raise ValueError(f"shares must be {len(weights)} numbers of at least 0 that sum to 1, got {shares.tolist()}")
    for other in weights[1:]:
        check_same_entries(weights[0], other)
    return {name: _average_entry([w[name] for w in weights], shares) for name in weights[0]}


def _average_entry(entries: list[Tensor], shares: Tensor) -> Tensor:
    if not entries[0].is_floating_point():
        return torch.stack(entries).amax(dim=0)
    total = torch.zeros(entries[0].shape, dtype=torch.float64)
    for entry, share in zip(entries, shares.tolist(), strict=True):
        total.add_(entry.to(torch.float64), alpha=share)
    return total.to(entries[0].dtype)


def add_scaled(start: Tensor, changes: Iterable[Tensor], scales: Iterable[float]) -> Tensor:
    """start + sum_k scale_k change_k, summed in float64 in the given order, in the dtype of `start`."""
    total = start.to(torch.float64, copy=True)
    for change, scale in zip(changes, scales, strict=True):
        total.add_(change.to(torch.float64), alpha=scale)
    return total.to(start.dtype)


def select_prefix(entries: Weights, prefix: str) -> dict[str, Tensor]:
    """The entries whose names begin with the prefix, by the rest of their names."""
    return {name.removeprefix(prefix): entry for name, entry in entries.items() if name.startswith(prefix)}


def add_prefix(entries: Weights, prefix: str) -> dict[str, Tensor]:
    """The entries, with the prefix before their names."""
    return {prefix + name: entry for name, entry in entries.items()}


def squared_distance(entries: Weights, start: Weights) -> Tensor:
    """sum |w - w_start|^2 over the named entries: a scalar, with the gradient of `entries`.

    Args:
        entries: w, by name.
        start: w_start; may have more entries.
    """
    terms = ((entry - start[name]).square().sum() for name, entry in entries.items())
    return sum(terms, torch.zeros(()))


def check_same_entries(expected: Weights, found: Weights) -> None:
    """Raise a ValueError that names the first difference in names, shapes or dtypes."""
    if missing := sorted(set(expected) - set(found)):
        raise ValueError(f"{len(missing)} entries are missing, the first is '{missing[0]}'")
    if extra := sorted(set(found) - set(expected)):
        raise ValueError(f"{len(extra)} entries are unknown, the first is '{extra[0]}'")
    for name, entry in expected.items():
        other = found[name]
        if entry.shape != other.shape or entry.dtype != other.dtype:
            raise ValueError(
                f"'{name}' is {tuple(other.shape)} {other.dtype}, expected {tuple(entry.shape)} {entry.dtype}"
            )


def first_non_finite(weights: Weights) -> str | None:
    """The name of the first entry that holds a NaN or an infinity; None if all are finite."""
    for name, entry in weights.items():
        if entry.is_floating_point() and not bool(torch.isfinite(entry).all()):
            return name
    return None


def batch_norm_layers(network: nn.Module) -> dict[str, nn.Module]:
    """Every BatchNorm of a network, by its path."""
    return {path: module for path, module in network.named_modules() if isinstance(module, _BatchNorm)}


def batch_norm_entries(network: nn.Module) -> frozenset[str]:
    """State-dict names that belong to a BatchNorm, found by module type.

    Looking for the letters "bn" would miss `downsample.1` in a ResNet and `norm` in a DenseNet.
    """
    names = set()
    for path, module in batch_norm_layers(network).items():
        names |= {f"{path}.{entry}" if path else entry for entry in module.state_dict()}
    return frozenset(names)


def running_variances(network: nn.Module) -> frozenset[str]:
    """State-dict names of the running variances of a network's normalisation layers, found by module type."""
    return frozenset(
        f"{path}.running_var" if path else "running_var"
        for path, module in network.named_modules()
        if isinstance(module, _NormBase) and module.running_var is not None
    )


def trainable_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that take a gradient, by name: no buffers, none that is frozen, none outside the state dict.

    The last are a method's own at a site (FedSR's), and no business of another's.
    """
    known = network.state_dict().keys()
    return {name: entry for name, entry in network.named_parameters() if entry.requires_grad and name in known}
