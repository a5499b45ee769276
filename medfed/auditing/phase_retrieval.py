"""Phase retrieval: an image from the amplitudes of its spectrum, and how much of its detail came back.

Turns are taken between what is known of the spectrum and what is known of the image (Fienup, Applied Optics 1982):

    G' = A e^{i arg G}                                    where the amplitude A is known, G elsewhere
    error reduction       g <- g' where g' keeps the constraints, else 0
    hybrid input-output   g <- g' where g' keeps the constraints, else g - beta g'

The constraints: 0 outside the support, and nowhere negative. Where half of the pixels or more are known to be empty
(air, padding), the whole spectrum as a rule has one solution, but for a shift and a point reflection (Hayes, IEEE TASSP
1982); `aligned` undoes those two.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

N_ERROR_REDUCTION = 200  # the last steps of a start reduce the error alone
CHECK_EVERY, EXACT_RESIDUAL = 250, 1e-3  # after so many steps a start that fits this well ends the search
ACCEPTED_RESIDUAL = (
    5e-3  # where no start fits this well, others are tried: of images of 32 to 80 pixels, two in three starts do
)


class ImageEstimate(NamedTuple):
    """image: (H, W), 0 outside the support, in [0, 1]. residual: relative error of its known amplitudes."""

    image: Tensor
    residual: float


def retrieve_phase(
    amplitude: Tensor, known: Tensor, support: Tensor, rng: torch.Generator, n_steps: int = 4000, n_starts: int = 4,
    n_waves: int = 4, beta: float = 0.6,
) -> ImageEstimate:
    """The image that fits the amplitudes best, from several random starts; the choice needs no original.

    Args:
        amplitude: (H, W // 2 + 1), |rfft2| of an image in [0, 1]; float32 or float64, which is computed in.
        known: the same shape, bool; where False, the amplitude is not looked at.
        support: (H, W), bool: outside it the image is 0.
        n_steps: per start; fewer where one fits.
        n_starts: at a time. n_waves: how many times as many, at most, while none fits.
        beta: how hard a pixel that breaks a constraint is pushed back, in (0, 1]; 0.9 is usual, and stays away from
            the solution more often.

    Raises:
        ValueError: if the shapes do not fit, nothing is known, or n_waves is below 1.
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
        found = _run_starts(starts, amplitude, known, support, n_steps, beta)
        best = found if found.residual < best.residual else best
        if best.residual < ACCEPTED_RESIDUAL:
            break
    return best


def align(found: Tensor, original: Tensor) -> Tensor:
    """`found` (H, W), moved in a circle and turned by half a turn where that brings it nearer to `original` (H, W)."""
    centred = torch.fft.rfft2(original - original.mean())
    best, likest = found, -math.inf
    for turned in (found, found.flip(0, 1)):
        spectrum = torch.fft.rfft2(turned - turned.mean())
        overlap = torch.fft.irfft2(centred * spectrum.conj(), s=original.shape)
        place = int(overlap.argmax())
        if float(overlap.max()) > likest:
            shift = divmod(place, original.shape[1])
            best, likest = turned.roll(shift, dims=(0, 1)), float(overlap.max())
    return best


def image_detail(image: Tensor, sigma_px: float) -> Tensor:
    """What a Gaussian blur takes away from (H, W): edges, vessels, texture. Borders go on by their own value."""
    reach = max(1, math.ceil(3 * sigma_px))
    places = torch.arange(-reach, reach + 1, dtype=image.dtype)
    weights = torch.exp(-0.5 * (places / sigma_px) ** 2)
    weights = weights / weights.sum()
    blurred = functional.pad(image[None, None], (reach,) * 4, mode="replicate")
    blurred = functional.conv2d(functional.conv2d(blurred, weights.view(1, 1, 1, -1)), weights.view(1, 1, -1, 1))
    return image - blurred[0, 0]


def correlation(a: Tensor, b: Tensor, inside: Tensor) -> float:
    """Pearson's, of (H, W) inside a mask; 0 where either is constant."""
    a, b = (one[inside].double() - one[inside].double().mean() for one in (a, b))
    size = float(a.norm() * b.norm())
    return float(a @ b) / size if size > 0 else 0.0


def detail_correlation(found: Tensor, original: Tensor, inside: Tensor, sigma_px: float) -> float:
    """Pearson's correlation of the details of two images (H, W) that lie on each other, well inside the mask: a black
    ground alone makes whole images alike. 1 is the image itself, about 0 tells nothing."""
    reach = max(1, math.ceil(2 * sigma_px))
    outside = functional.max_pool2d((~inside).to(found)[None, None], 2 * reach + 1, 1, reach)[0, 0]
    core = outside == 0
    return correlation(
        image_detail(found, sigma_px), image_detail(original, sigma_px), core if int(core.sum()) > 16 else inside
    )


def _run_starts(
    image: Tensor, amplitude: Tensor, known: Tensor, support: Tensor, n_steps: int, beta: float
) -> ImageEstimate:
    """The best of the starts (B, H, W) after `n_steps`, or as soon as one fits."""
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
    """One turn for (B, H, W); it reduces the error where beta is None."""
    spectrum = torch.fft.rfft2(image)
    size = spectrum.abs()
    fitted = torch.where(known & (size > 0), spectrum * (amplitude / size.clamp_min(1e-30)), spectrum)
    proposed = torch.fft.irfft2(fitted, s=image.shape[-2:])
    allowed = support & (proposed >= 0)
    return torch.where(allowed, proposed, 0.0 if beta is None else image - beta * proposed)


def _apply_constraints(image: Tensor, support: Tensor) -> Tensor:
    return (image * support).clamp(0, 1)


def _residuals(images: Tensor, amplitude: Tensor, known: Tensor) -> list[float]:
    difference = (torch.fft.rfft2(images).abs() - amplitude)[:, known]
    return (difference.norm(dim=1) / amplitude[known].norm().clamp_min(1e-30)).tolist()
