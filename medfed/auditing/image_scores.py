"""How similar a reconstructed image is to the original that it is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.ndimage import gaussian_filter, minimum_filter
from skimage.metrics import structural_similarity
from skimage.registration import phase_cross_correlation
from torch import Tensor

SIGMA = 3 / 128  # standard deviation of the blur that defines image details, as a fraction of the image's side
SHOWN = 0.05  # intensity above which a pixel of the original is not empty
MIN_PIXELS = 16  # of the part in which details are compared


@dataclass(frozen=True)
class Attempt:
    """An original (H, W), and by the name of an attack or control the image found for it, aligned, and its scores."""

    original: Tensor
    images: dict[str, Tensor]
    scores: dict[str, dict[str, float]]


def scored_channel(image: Tensor) -> int:
    """The channel of an image (..., C, H, W) that is compared: green of three channels, otherwise the first."""
    return 1 if image.shape[-3] == 3 else 0


def compare(image: Tensor, original: Tensor) -> dict[str, float]:
    """The scores of an image (H, W) that is aligned with its original; "ssim" is after the best linear change of grey
    values, the others are inside the part that is not empty."""
    a, b = (each.detach().double().numpy() for each in (image, original))
    inside, contrast = b > SHOWN, float(np.ptp(b))
    slope = ((a - a.mean()) * (b - b.mean())).sum() / max(((a - a.mean()) ** 2).sum(), 1e-12)
    fitted = slope * (a - a.mean()) + b.mean()
    kernel = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}  # as Wang et al. define SSIM
    return {
        "correlation": correlation(a, b, inside),
        "detail_correlation": detail_correlation(a, b, inside, SIGMA * len(b)),
        "ssim": float(structural_similarity(fitted, b, data_range=max(contrast, 1e-6), **kernel)),
    }


def align(estimate: Tensor, original: Tensor) -> Tensor:
    """Rotate an estimate (H, W) by 0 or 180 degrees and shift it circularly, to the highest cross-correlation with
    `original`. Phase retrieval cannot determine either, because neither changes the amplitudes."""
    candidates = (estimate, estimate.flip(0, 1))
    alignments = [
        phase_cross_correlation(original.double().numpy(), candidate.double().numpy(), normalization=None)[:2]
        for candidate in candidates
    ]
    best = min(range(2), key=lambda k: float(alignments[k][1]))
    return torch.roll(candidates[best], [int(shift) for shift in alignments[best][0]], (0, 1))


def correlation(a: np.ndarray, b: np.ndarray, inside: np.ndarray) -> float:
    """Pearson's correlation of two images (H, W) where `inside` is True; 0 if an image is constant there."""
    a, b = a[inside], b[inside]
    return float(np.corrcoef(a, b)[0, 1]) if len(a) and np.ptp(a) > 0 and np.ptp(b) > 0 else 0.0


def image_detail(image: np.ndarray, sigma_px: float) -> np.ndarray:
    """Edges and texture: the image (H, W) minus its Gaussian blur; edge pixels are repeated beyond the border."""
    return image - gaussian_filter(image, sigma_px, mode="nearest", truncate=3)


def detail_correlation(estimate: np.ndarray, original: np.ndarray, inside: np.ndarray, sigma_px: float) -> float:
    """Pearson's correlation of the fine details of two images (H, W) `inside`, without its edge if enough remains."""
    core = minimum_filter(inside, 2 * max(1, math.ceil(2 * sigma_px)) + 1, mode="nearest")
    details = image_detail(estimate, sigma_px), image_detail(original, sigma_px)
    return correlation(*details, core if core.sum() > MIN_PIXELS else inside)
