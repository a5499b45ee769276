"""The frequency exchange of ELCFS, three ways in one run: with numpy, `torch.fft` and `medfed.functional.fourier`.

The ways take turns, so that a busy machine is unfair to none; the median is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from medfed.benchmarks.timing import time_alternating
from medfed.functional import fourier

ALPHA = 0.01  # the paper's share of the side: a 7 x 7 window at 384 x 384
AXES = (-2, -1)


def time_exchange(size: int = 384, n_images: int = 5, n_sites: int = 5, repeats: int = 7) -> dict[str, float | int]:
    """Time one batch of float32 RGB images in the style of every site: n_images * n_sites views.

    The other sites' amplitudes are at hand in each form (whole for the two FFT forms), as a bank would hold them.
    Views are dropped as the next are made, as in training, so that the mathematics is timed more than the allocator.

    Returns:
        The four arguments, threads, the median milliseconds of each form, the two ratios to ours, and the largest
        difference between ours and either other form, relative to the brightest pixel.
    """
    forms = _implementations(size, n_images, n_sites)
    views = {name: list(form()) for name, form in forms.items()}                         # also warms up
    difference = max(_relative_difference(views["medfed"], views[name]) for name in ("numpy", "torch_fft"))
    views.clear()
    median_ms = time_alternating(forms, repeats)
    return {
        **{"size": size, "n_images": n_images, "n_sites": n_sites, "repeats": repeats},
        "threads": torch.get_num_threads(),
        **{f"{name}_ms": value for name, value in median_ms.items()},
        "times_faster_than_numpy": median_ms["numpy"] / median_ms["medfed"],
        "times_faster_than_torch_fft": median_ms["torch_fft"] / median_ms["medfed"],
        "max_relative_difference": difference,
    }


def numpy_views(images: Tensor, others: list[Tensor], ratios: list[Tensor]) -> Iterator[Tensor]:
    """Image by image with numpy's two full FFTs; yields (B, C, H, W), one site's view of the batch after another."""
    for other, ratio in zip(others, ratios, strict=True):
        triples = zip(images.numpy(), other.numpy(), ratio.numpy(), strict=True)
        yield torch.from_numpy(np.stack([_numpy_view(*triple) for triple in triples]))


def torch_views(images: Tensor, others: list[Tensor], ratios: list[Tensor]) -> Iterator[Tensor]:
    """The batch at once with the two full FFTs of `torch.fft`; yields as `numpy_views`."""
    window = _window_slices(tuple(images.shape[-2:]))
    for other, ratio in zip(others, ratios, strict=True):
        spectrum = torch.fft.fftshift(torch.fft.fft2(images), dim=AXES)
        amplitude, phase = spectrum.abs(), spectrum.angle()
        amplitude[window] = torch.lerp(amplitude[window], other[window], ratio.view(-1, 1, 1, 1))
        styled = torch.fft.ifftshift(torch.polar(amplitude, phase), dim=AXES)
        yield torch.fft.ifft2(styled).real


def medfed_views(images: Tensor, windows: list[Tensor], ratios: list[Tensor]) -> Iterator[Tensor]:
    """One analysis of the batch, then an exact low-rank correction for each view; yields as `numpy_views`."""
    analysis = fourier.low_frequency_spectrum(images, ALPHA)
    for window, ratio in zip(windows, ratios, strict=True):
        yield fourier.mix_amplitude(images, analysis, window, ratio)


def _numpy_view(image: np.ndarray, other: np.ndarray, ratio: np.floating) -> np.ndarray:
    spectrum = np.fft.fftshift(np.fft.fft2(image, axes=AXES), axes=AXES)
    amplitude, phase = np.abs(spectrum), np.angle(spectrum)
    window = _window_slices(image.shape[-2:])
    amplitude[window] = (1 - ratio) * amplitude[window] + ratio * other[window]
    styled = np.fft.ifftshift(amplitude * np.exp(1j * phase), axes=AXES)
    return np.fft.ifft2(styled, axes=AXES).real


def _window_slices(shape: tuple[int, ...]) -> tuple:
    """Where the window lies in a shifted spectrum."""
    half = fourier.window_half_width(shape, ALPHA)
    return (..., *(slice(size // 2 - half, size // 2 + half + 1) for size in shape))


def _implementations(size: int, n_images: int, n_sites: int) -> dict[str, Callable[[], Iterator[Tensor]]]:
    rng = torch.Generator().manual_seed(0)
    images, *donors = 255 * torch.rand(n_sites + 1, n_images, 3, size, size, generator=rng)
    ratios = list(torch.rand(n_sites, n_images, generator=rng))
    spectra = [torch.fft.fftshift(torch.fft.fft2(donor).abs(), dim=AXES) for donor in donors]
    windows = [fourier.low_frequency_window(donor, ALPHA) for donor in donors]
    return {
        "numpy": lambda: numpy_views(images, spectra, ratios),
        "torch_fft": lambda: torch_views(images, spectra, ratios),
        "medfed": lambda: medfed_views(images, windows, ratios),
    }


def _relative_difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, theirs, strict=True))


def exchange_table(result: dict[str, float | int]) -> str:
    """The result of `time_exchange` for a person."""
    rows = [
        ("numpy fft2, image by image", result["numpy_ms"], result["times_faster_than_numpy"]),
        ("torch.fft, a batch at a time", result["torch_fft_ms"], result["times_faster_than_torch_fft"]),
        ("medfed, one analysis", result["medfed_ms"], 1.0),
    ]
    return "\n".join([
        f"frequency exchange: {result['n_images']} images x {result['n_sites']} sites, 3 x {result['size']} x "
        f"{result['size']}, {result['threads']} threads, median of {result['repeats']}",
        f"  {'form':<30}{'ms':>9}{'times ours':>13}",
        *(f"  {name:<30}{ms:>9.1f}{times:>13.1f}" for name, ms, times in rows),
        f"  largest relative difference {result['max_relative_difference']:.1e}",
    ])  # fmt: skip
