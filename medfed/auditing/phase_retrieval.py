"""Phase retrieval: reconstruct an image from the amplitudes of its Fourier spectrum.

Each step first replaces the amplitudes of the current spectrum G by the known amplitudes A, which gives an image g'.
It then applies the constraints of the image (Fienup, "Phase retrieval algorithms: a comparison", Applied Optics 1982,
https://doi.org/10.1364/AO.21.002758):

    G' = A e^{i arg G}                                    where the amplitude A is known, G elsewhere
    error reduction       g <- g' where g' satisfies the constraints, else 0
    hybrid input-output   g <- g' where g' satisfies the constraints, else g - beta g'

The constraints are: 0 outside the support, and no negative pixels. If at least half of the pixels are known to be empty
(air or padding), the complete amplitude spectrum usually determines the image up to a shift and a point reflection
(Hayes, IEEE TASSP 1982, https://doi.org/10.1109/TASSP.1982.1163863).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

N_ERROR_REDUCTION = 200  # the last steps of each start use error reduction instead of hybrid input-output
CHECK_EVERY, EXACT_RESIDUAL = 250, 1e-3  # a start ends early if its residual is below this at one of these steps
ACCEPTED_RESIDUAL = 5e-3  # new starts are tried until one residual is below this (2 of 3 starts reach it)
BETA = 0.6  # feedback of hybrid input-output; the common value 0.9 converges less often here


class ImageEstimate(NamedTuple):
    """An image (H, W) in [0, 1], and the relative error of its amplitudes, or other statistics; 0 fits perfectly."""

    image: Tensor
    residual: float


def retrieve_phase(
    amplitude: Tensor,
    known: Tensor,
    support: Tensor,
    rng: torch.Generator,
    n_steps: int = 4000,
    n_starts: int = 4,
    n_waves: int = 4,
) -> ImageEstimate:
    """Reconstruct an image from the amplitudes of its Fourier spectrum, without the phases.

    Waves of random starting images, each followed for at most `n_steps` steps, until the amplitudes fit. The result
    that fits best is returned; the original image is not needed for this choice. `amplitude` is |rfft2| of an image
    in [0, 1], `known` where it is known, both (H, W // 2 + 1); the image may differ from 0 in `support` (H, W).
    """
    best = ImageEstimate(torch.zeros_like(support, dtype=amplitude.dtype), math.inf)
    for _ in range(n_waves):
        starts = torch.rand(n_starts, *support.shape, generator=rng, dtype=amplitude.dtype) * support
        estimate = _run_starts(starts, amplitude, known, support, n_steps)
        best = min(best, estimate, key=lambda each: each.residual)
        if best.residual < ACCEPTED_RESIDUAL:
            break
    return best


def _run_starts(image: Tensor, amplitude: Tensor, known: Tensor, support: Tensor, n_steps: int) -> ImageEstimate:
    """Run all starts (B, H, W) for `n_steps` steps, or until one of them fits, and return the best one."""
    for step in range(1, n_steps + 1):
        image = _step(image, amplitude, known, support, step > n_steps - N_ERROR_REDUCTION)
        if step % CHECK_EVERY == 0 and _best(image, amplitude, known, support).residual < EXACT_RESIDUAL:
            break
    return _best(image, amplitude, known, support)


def _step(image: Tensor, amplitude: Tensor, known: Tensor, support: Tensor, is_error_reduction: bool) -> Tensor:
    """One step for (B, H, W): error reduction or hybrid input-output."""
    spectrum = torch.fft.rfft2(image)
    size = spectrum.abs()
    fitted = torch.where(known & (size > 0), spectrum * (amplitude / size.clamp_min(1e-30)), spectrum)
    proposed = torch.fft.irfft2(fitted, s=image.shape[-2:])
    allowed = support & (proposed >= 0)
    return torch.where(allowed, proposed, 0.0 if is_error_reduction else image - BETA * proposed)


def _best(images: Tensor, amplitude: Tensor, known: Tensor, support: Tensor) -> ImageEstimate:
    """The image of (B, H, W) with the smallest relative error of the known amplitudes, within the constraints."""
    images = (images * support).clamp(0, 1)
    difference = (torch.fft.rfft2(images).abs() - amplitude)[:, known]
    errors = (difference.norm(dim=1) / amplitude[known].norm().clamp_min(1e-30)).tolist()
    best = min(range(len(images)), key=errors.__getitem__)
    return ImageEstimate(images[best], errors[best])
