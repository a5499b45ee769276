"""Steps of weights inside a training step: up the loss (HarmoFL), down it (ELCFS), and of a second model (Epi-FCR)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam


def sharpness_ascent(loss: Tensor, parameters: Mapping[str, Tensor], distance: float) -> dict[str, Tensor]:
    """w + delta, delta = distance * g / |g|, g = dL/dw (HarmoFL's weight perturbation; Foret et al., ICLR 2021).

    The norm is over all weights together. delta is a constant: a loss at w + delta passes its gradient on to w
    unchanged, so an optimiser steps at w, and there are no second derivatives. The weights themselves are not touched.

    Args:
        loss: scalar, computed from `parameters`; its graph is kept.
        parameters: by name, as `named_parameters` gives them; those that are not trained stay.
        distance: |delta|, at least 0.

    Returns:
        Fast weights by name, for `torch.func.functional_call`; where the gradient is 0 there is no way up, and they are
        the given ones.
    """
    trained = {name: entry for name, entry in parameters.items() if entry.requires_grad}
    gradients = torch.autograd.grad(loss, list(trained.values()), retain_graph=True, allow_unused=True)
    found = {name: g for name, g in zip(trained, gradients, strict=True) if g is not None}
    if not found:
        return dict(parameters)
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in found.values()]))
    scale = torch.where(norm > 0, distance / norm, torch.zeros_like(norm))
    return {**parameters, **{name: trained[name] + scale * g for name, g in found.items()}}


def inner_step(
    loss: Tensor, parameters: Mapping[str, Tensor], step_size: float, clamp: float, second_order: bool = False
) -> dict[str, Tensor]:
    """theta' = theta - beta clamp(grad L(theta)) (ELCFS eq. 4).

    Args:
        loss: scalar, computed from `parameters`; its graph is kept for the outer backward pass.
        parameters: by name, as `named_parameters` gives them.
        step_size: beta, at least 0.
        clamp: each element of the gradient is cut to plus or minus this.
        second_order: differentiate through the step. First order takes d theta' / d theta = 1, so the outer loss adds
            its gradient at theta' to that of the inner loss at theta.

    Returns:
        Fast weights by name, for `torch.func.functional_call`.
    """
    trained = {name: entry for name, entry in parameters.items() if entry.requires_grad}
    gradients = torch.autograd.grad(
        loss, list(trained.values()), retain_graph=True, create_graph=second_order, allow_unused=True
    )
    fast = dict(parameters)
    for (name, entry), gradient in zip(trained.items(), gradients, strict=True):
        if gradient is not None:
            fast[name] = entry - step_size * gradient.clamp(-clamp, clamp)
    return fast


@torch.no_grad()
def adam_step(
    values: Sequence[Tensor], gradients: Sequence[Tensor], first: Sequence[Tensor], second: Sequence[Tensor],
    steps: Tensor, learning_rate: float,
) -> Tensor:  # fmt: skip
    """One step of Adam (betas 0.9 and 0.999, epsilon 1e-8) on plain tensors, in place.

    Args:
        values: the weights; first, second: the moments of their gradients. All three change in place.
        gradients: of the same shapes.
        steps: scalar on the CPU, how many steps were taken before; unchanged.

    Returns:
        steps + 1.
    """
    counters = [steps.clone() for _ in values]
    adam(list(values), list(gradients), list(first), list(second), [], counters, amsgrad=False, beta1=0.9, beta2=0.999,
         lr=learning_rate, weight_decay=0.0, eps=1e-8, maximize=False)  # fmt: skip
    return steps + 1
