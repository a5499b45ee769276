"""The ascent step of sharpness-aware training: weights a fixed way up the loss, where the gradient is then taken."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def ascend(loss: Tensor, parameters: Mapping[str, Tensor], distance: float) -> dict[str, Tensor]:
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
