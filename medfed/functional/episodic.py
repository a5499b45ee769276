"""The inner step of episodic (meta) learning: weights after one gradient step, still tied to the weights before it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


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
