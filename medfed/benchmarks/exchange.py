"""Frequency exchange of ELCFS in a batch of images, against two full FFTs for each exchange"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from medfed.benchmarks.harness import Row, median_ms
from medfed.functional import fourier

ALPHA = 0.01  # as in the paper: a 7 x 7 window at 384 x 384 pixels
AXES = (-2, -1)


def measure(size: int = 384, n_images: int = 5, n_sites: int = 5, repeats: int = 3) -> list[Row]:
    """RGB images of noise get the amplitudes of an image of every site. The difference of the results is relative to
    their largest number."""
    rng = torch.Generator().manual_seed(0)
    images, *donors = 255 * torch.rand(n_sites + 1, n_images, 3, size, size, generator=rng)
    ratios = list(torch.rand(n_sites, n_images, generator=rng))
    spectra = [torch.fft.fftshift(torch.fft.fft2(donor).abs(), dim=AXES) for donor in donors]
    windows = [fourier.low_frequency_window(donor, ALPHA) for donor in donors]

    def medfed() -> list[Tensor]:
        spectrum = fourier.low_frequency_spectrum(images, ALPHA)
        pairs = zip(windows, ratios, strict=True)
        return [fourier.mix_amplitude(images, spectrum, window, ratio) for window, ratio in pairs]

    def peer() -> list[Tensor]:
        return exchange_with_ffts(images, spectra, ratios)

    difference = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(medfed(), peer(), strict=True))
    ms, peer_ms = median_ms([medfed, peer], repeats, time.perf_counter)
    return [Row(f"{n_images} images x {n_sites} sites, {size} px", "torch.fft", ms, peer_ms, difference=difference)]


def exchange_with_ffts(images: Tensor, spectra: Sequence[Tensor], ratios: Sequence[Tensor]) -> list[Tensor]:
    """The restyled images (B, C, H, W) for each site. `spectra` are amplitudes (B, C, H, W) with the zero frequency in
    the centre; their low frequencies are mixed with those of the images with weights `ratios` (B,)."""
    half = fourier.window_half_width(tuple(images.shape[-2:]), ALPHA)
    rows, columns = (slice(side // 2 - half, side // 2 + half + 1) for side in images.shape[-2:])
    restyled = []
    for other, ratio in zip(spectra, ratios, strict=True):
        spectrum = torch.fft.fftshift(torch.fft.fft2(images), dim=AXES)
        amplitude, phase = spectrum.abs(), spectrum.angle()
        own, donor = amplitude[..., rows, columns], other[..., rows, columns]
        amplitude[..., rows, columns] = torch.lerp(own, donor, ratio.view(-1, 1, 1, 1))
        restyled.append(torch.fft.ifft2(torch.fft.ifftshift(torch.polar(amplitude, phase), dim=AXES)).real)
    return restyled
