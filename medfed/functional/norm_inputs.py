"""What enters a network's first BatchNorm, which no BatchNorm has touched yet, and how far it is from what it was."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from medfed.functional.weights import batch_norms


class _Entered(Exception):
    """Leaves a forward pass where the first BatchNorm begins."""

    def __init__(self, path: str, features: Tensor) -> None:
        super().__init__()
        self.path, self.features = path, features


@torch.no_grad()
def first_norm_input(network: nn.Module, batches: Iterable[Tensor]) -> tuple[str, Tensor, Tensor]:
    """The path of the BatchNorm that runs first; mean (C,) and variance (C,), float64, of what enters it.

    Over all images and pixels. Sites that differ in BatchNorm entries alone agree on these, and on nothing behind.

    Args:
        network: in evaluation mode, with a BatchNorm.
        batches: at least one, (B, C, H, W) as the network takes them.
    """
    path, count, total, squares = "", 0, 0.0, 0.0
    with ExitStack() as hooks:
        for name, norm in batch_norms(network).items():
            hooks.callback(norm.register_forward_pre_hook(_leave(name)).remove)
        for batch in batches:
            try:
                network(batch)
            except _Entered as entered:
                path, rows = entered.path, entered.features.double().transpose(0, 1).flatten(1).cpu()
                count, total, squares = count + rows.shape[1], total + rows.sum(1), squares + rows.square().sum(1)
    if not path:
        raise ValueError("no BatchNorm ran, or there was no batch")
    mean = total / count
    return path, mean, (squares / count - mean.square()).clamp(min=0)


def _leave(path: str):
    def hook(module: nn.Module, inputs: tuple) -> None:
        raise _Entered(path, inputs[0])

    return hook


def gaussian_distance(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> float:
    """Squared 2-Wasserstein distance of Gaussians, channel by channel, in units of the other's variance; the mean.

    ((m - m')^2 + (s - s')^2) / s'^2. A channel with s' = 0 counts 0 if m = m' and s = 0; else it is infinitely far.
    """
    gap = (mean - other_mean).square() + (variance.sqrt() - other_variance.sqrt()).square()
    return float(torch.where(gap == 0, 0.0, gap / other_variance).mean())
