"""Styles as distributions (DSU; Li et al., ICLR 2022): noise as wide as the styles of the batch lie apart."""

from __future__ import annotations

import torch
from torch import Tensor

from medfed.functional.feature_style import EPSILON, moments
from medfed.functional.style import transfer


def style_noised(features: Tensor, rng: torch.Generator, factor: float = 1.0) -> Tensor:
    """Give each map a style drawn around its own.

        mean = mu + e_mu * S_mu,  std = sigma + e_sigma * S_sigma,  e ~ N(0, 1) a sample and channel

    where S_mu and S_sigma are how far mu and sigma spread over the batch, sqrt(variance + 1e-6) of each channel. A
    drawn deviation may be negative, and then mirrors the channel, as published. Gradients pass through all statistics.

    Args:
        features: (B, C, H, W). One image has no spread: it comes back as it is.
        rng: a CPU generator.
        factor: of the spread, at least 0; 0 is the identity, to the bit.

    Returns:
        The shape and type of `features`; computed in float32 at least.

    Raises:
        ValueError: if the features are no maps, or the factor is negative.
    """
    if factor < 0:
        raise ValueError(f"factor must be at least 0, got {factor}")
    own = torch.stack(moments(features))                                                 # (2, B, C)
    if factor == 0 or len(features) < 2:
        return features
    spread = (own.var(dim=1, keepdim=True) + EPSILON).sqrt()
    noise = torch.randn(own.shape, dtype=torch.float64, generator=rng).to(own)
    return transfer(features, own, own + factor * noise * spread).to(features.dtype)
