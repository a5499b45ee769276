"""Single gradient steps on weights inside a training step: up a loss (HarmoFL), down a loss (ELCFS), and with Adam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam


def sharpness_ascent(loss: Tensor, parameters: Mapping[str, Tensor], distance: float) -> dict[str, Tensor]:
    """Return the weights moved a fixed distance up the gradient of a loss L, as sharpness-aware minimisation does.

        w + delta,   delta = distance * g / |g|,   g = dL/dw

    This is the weight perturbation of HarmoFL (Jiang et al., "HarmoFL: Harmonizing Local and Global Drifts in Federated
    Learning on Heterogeneous Medical Images", AAAI 2022, https://arxiv.org/abs/2112.10775), after Foret et al.,
    "Sharpness-Aware Minimization for Efficiently Improving Generalization", ICLR 2021,
    https://arxiv.org/abs/2010.01412. delta is a constant to the gradient: backpropagation passes the gradient of a loss
    at w + delta to w unchanged, without second derivatives.

    Args:
        loss: scalar, computed from `parameters`. Its autograd graph is kept.
        parameters: the weights w by name. Entries that do not require a gradient are returned as they are.
        distance: |delta|, the Euclidean norm over all weights together, at least 0.

    Returns:
        The weights w + delta by name, for `torch.func.functional_call`. If the gradient is 0, they equal w.
    """
    trained = {name: entry for name, entry in parameters.items() if entry.requires_grad}
    gradients = torch.autograd.grad(loss, list(trained.values()), retain_graph=True, allow_unused=True)
    known = {name: g for name, g in zip(trained, gradients, strict=True) if g is not None}
    if not known:
        return dict(parameters)
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in known.values()]))
    scale = torch.where(norm > 0, distance / norm, torch.zeros_like(norm))
    return {**parameters, **{name: trained[name] + scale * g for name, g in known.items()}}


def inner_step(
    loss: Tensor, parameters: Mapping[str, Tensor], step_size: float, clamp: float | None, second_order: bool = False
) -> dict[str, Tensor]:
    """Return the weights after one gradient descent step on a loss, as the inner step of meta-learning.

        theta' = theta - beta * clamp(dL/dtheta)

    A second (outer) loss, computed with theta', is then minimised over theta. Implements eq. 4 of ELCFS (Liu et al.,
    CVPR 2021, https://arxiv.org/abs/2103.06030). The clamp is in the released code only.

    Args:
        loss: the inner loss L, a scalar computed from `parameters`. Its autograd graph is kept for the outer loss.
        parameters: the weights theta by name. Entries that do not require a gradient are returned as they are.
        step_size: the learning rate beta of this step, at least 0.
        clamp: each element of the gradient is limited to [-clamp, clamp]. None does not limit the gradient.
        second_order: True differentiates the outer loss through this step, with second derivatives. False treats d
            theta' / d theta as the identity.

    Returns:
        The new weights by name, for `torch.func.functional_call`.
    """
    trained = {name: entry for name, entry in parameters.items() if entry.requires_grad}
    gradients = torch.autograd.grad(
        loss, list(trained.values()), retain_graph=True, create_graph=second_order, allow_unused=True
    )
    fast = dict(parameters)
    for (name, entry), gradient in zip(trained.items(), gradients, strict=True):
        if gradient is not None:
            limited = gradient if clamp is None else gradient.clamp(-clamp, clamp)
            fast[name] = entry - step_size * limited  # eq. 4
    return fast


@torch.no_grad()
def adam_step(
    values: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    steps: Tensor,
    learning_rate: float,
) -> Tensor:
    """Do one step of Adam on plain tensors, in place (betas 0.9 and 0.999, epsilon 1e-8, no weight decay).

    `first` and `second` are Adam's running means of each gradient and of its square, 0 before the first step. `steps`
    is the number of steps before this call, a scalar tensor on the CPU; the return value is steps + 1.
    """
    counters = [steps.clone() for _ in values]
    adam(
        list(values),
        list(gradients),
        list(first),
        list(second),
        [],
        counters,
        amsgrad=False,
        beta1=0.9,
        beta2=0.999,
        lr=learning_rate,
        weight_decay=0.0,
        eps=1e-8,
        maximize=False,
    )
    return steps + 1
