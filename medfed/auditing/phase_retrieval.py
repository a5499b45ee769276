"""Phase retrieval: reconstruct an image from the amplitudes of its Fourier spectrum, and score the result.

Each step first replaces the amplitudes of the current spectrum G by the known amplitudes A, which gives an image g'.
It then applies the constraints of the image (Fienup, "Phase retrieval algorithms: a comparison", Applied Optics 1982,
https://doi.org/10.1364/AO.21.002758):

    G' = A e^{i arg G}                                    where the amplitude A is known, G elsewhere
    error reduction       g <- g' where g' satisfies the constraints, else 0
    hybrid input-output   g <- g' where g' satisfies the constraints, else g - beta g'

The constraints are: 0 outside the support, and no negative pixels. If at least half of the pixels are known to be empty
(air or padding), the complete amplitude spectrum usually determines the image up to a shift and a point reflection
(Hayes, IEEE TASSP 1982, https://doi.org/10.1109/TASSP.1982.1163863). `align` undoes shift and reflection.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

N_ERROR_REDUCTION = 200  # the last steps of each start use error reduction instead of hybrid input-output
CHECK_EVERY, EXACT_RESIDUAL = 250, 1e-3  # a start ends early if its residual is below this at one of these steps
ACCEPTED_RESIDUAL = 5e-3  # new starts are tried until one residual is below this (2 of 3 starts reach it)


class ImageEstimate(NamedTuple):
    """A reconstructed image (H, W) in [0, 1], 0 outside the support (the region in which it may be different from 0).

    `residual` is the relative error of its amplitudes, or other statistics, compared with the known ones; 0 fits
    perfectly.
    """

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
    beta: float = 0.6,
) -> ImageEstimate:
    """Reconstruct an image from the amplitudes of its Fourier spectrum, without the phases.

    Fienup's hybrid input-output, followed by error reduction, from several random starting images. The result whose
    amplitudes are closest to the known amplitudes is returned; the original image is not needed for this choice.

    Args:
        amplitude: (H, W // 2 + 1), |rfft2| of an image in [0, 1], float32 or float64.
        known: (H, W // 2 + 1) bool; True where the amplitude is known.
        support: (H, W) bool, the region in which the image may be different from 0.
        rng: CPU random generator for the starting images.
        n_steps: largest number of steps from each starting image.
        n_starts: number of starting images of one wave, which are computed together.
        n_waves: largest number of waves, at least 1. No further wave is computed if the residual is below 5e-3.
        beta: feedback factor of hybrid input-output in (0, 1]. The common value 0.9 converges less often here than 0.6.

    Raises:
        ValueError: if the shapes do not match, if no amplitude is known, or if `n_waves` is below 1.
    """
    height, width = support.shape
    if amplitude.shape != (height, width // 2 + 1) or known.shape != amplitude.shape:
        raise ValueError(
            f"amplitude and known must be ({height}, {width // 2 + 1}), got {tuple(amplitude.shape)} and "
            f"{tuple(known.shape)}"
        )
    if not bool(known.any()):
        raise ValueError("no amplitude is known")
    if n_waves < 1:
        raise ValueError(f"n_waves must be at least 1, got {n_waves}")
    best = ImageEstimate(torch.zeros_like(support, dtype=amplitude.dtype), math.inf)
    for _ in range(n_waves):
        starts = torch.rand(n_starts, height, width, generator=rng, dtype=amplitude.dtype) * support
        estimate = _run_starts(starts, amplitude, known, support, n_steps, beta)
        best = estimate if estimate.residual < best.residual else best
        if best.residual < ACCEPTED_RESIDUAL:
            break
    return best


def align(estimate: Tensor, original: Tensor) -> Tensor:
    """Rotate an estimate (H, W) by 0 or 180 degrees and shift it circularly, to the highest cross-correlation with
    `original`. Phase retrieval cannot determine either, because neither changes the amplitudes."""
    centred = torch.fft.rfft2(original - original.mean())
    best, highest = estimate, -math.inf
    for candidate in (estimate, estimate.flip(0, 1)):
        spectrum = torch.fft.rfft2(candidate - candidate.mean())
        overlap = torch.fft.irfft2(centred * spectrum.conj(), s=original.shape)
        position = int(overlap.argmax())
        if float(overlap.max()) > highest:
            shift = divmod(position, original.shape[1])
            best, highest = candidate.roll(shift, dims=(0, 1)), float(overlap.max())
    return best


def image_detail(image: Tensor, sigma_px: float) -> Tensor:
    """Edges and texture: the image (H, W) minus its Gaussian blur; edge pixels are repeated beyond the border."""
    reach = max(1, math.ceil(3 * sigma_px))
    places = torch.arange(-reach, reach + 1, dtype=image.dtype)
    weights = torch.exp(-0.5 * (places / sigma_px) ** 2)
    weights = weights / weights.sum()
    blurred = F.pad(image[None, None], (reach,) * 4, mode="replicate")
    blurred = F.conv2d(F.conv2d(blurred, weights.view(1, 1, 1, -1)), weights.view(1, 1, -1, 1))
    return image - blurred[0, 0]


def correlation(a: Tensor, b: Tensor, inside: Tensor) -> float:
    """Pearson's correlation of two images (H, W) where `inside` is True; 0 if an image is constant there."""
    a, b = (image[inside].double() - image[inside].double().mean() for image in (a, b))
    size = float(a.norm() * b.norm())
    return float(a @ b) / size if size > 0 else 0.0


def detail_correlation(estimate: Tensor, original: Tensor, inside: Tensor, sigma_px: float) -> float:
    """Pearson's correlation of the fine details (`image_detail`) of two aligned images (H, W).

    Two different images with the same black background can have a high correlation, but a low correlation of their fine
    details. `inside` is True where the original is not empty. Pixels nearer than 2 `sigma_px` to its edge are left out;
    if 16 or fewer pixels would remain, the whole region is compared.
    """
    reach = max(1, math.ceil(2 * sigma_px))
    outside = F.max_pool2d((~inside).to(estimate)[None, None], 2 * reach + 1, 1, reach)[0, 0]
    core = outside == 0
    return correlation(
        image_detail(estimate, sigma_px), image_detail(original, sigma_px), core if int(core.sum()) > 16 else inside
    )


def _run_starts(
    image: Tensor, amplitude: Tensor, known: Tensor, support: Tensor, n_steps: int, beta: float
) -> ImageEstimate:
    """Run all starts (B, H, W) for `n_steps` steps, or until one of them fits, and return the best one."""
    for step in range(1, n_steps + 1):
        image = _step(image, amplitude, known, support, None if step > n_steps - N_ERROR_REDUCTION else beta)
        if (
            step % CHECK_EVERY == 0
            and min(_residuals(_apply_constraints(image, support), amplitude, known)) < EXACT_RESIDUAL
        ):
            break
    image = _apply_constraints(image, support)
    errors = _residuals(image, amplitude, known)
    best = min(range(len(image)), key=errors.__getitem__)
    return ImageEstimate(image[best], errors[best])


def _step(image: Tensor, amplitude: Tensor, known: Tensor, support: Tensor, beta: float | None) -> Tensor:
    """One step for (B, H, W): hybrid input-output, or error reduction if `beta` is None."""
    spectrum = torch.fft.rfft2(image)
    size = spectrum.abs()
    fitted = torch.where(known & (size > 0), spectrum * (amplitude / size.clamp_min(1e-30)), spectrum)
    proposed = torch.fft.irfft2(fitted, s=image.shape[-2:])
    allowed = support & (proposed >= 0)
    return torch.where(allowed, proposed, 0.0 if beta is None else image - beta * proposed)


def _apply_constraints(image: Tensor, support: Tensor) -> Tensor:
    """Set pixels outside the support to 0 and clip the others to [0, 1]."""
    return (image * support).clamp(0, 1)


def _residuals(images: Tensor, amplitude: Tensor, known: Tensor) -> list[float]:
    """The relative error of the known amplitudes of every image (B, H, W)."""
    difference = (torch.fft.rfft2(images).abs() - amplitude)[:, known]
    return (difference.norm(dim=1) / amplitude[known].norm().clamp_min(1e-30)).tolist()
