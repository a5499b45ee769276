"""Exchange the low-frequency amplitude of images while their phase stays, as in ELCFS and FDA.

    A' = (1 - ratio) * A + ratio * A_other      inside the window, A elsewhere          (eq. 2)
    x' = F^-1(A', P) = x + Re sum_u (A' - A) e^{iP} e^{2 pi i u.x / n}                  (eq. 3)

A and P are the amplitude and phase of the image's discrete Fourier transform F. Equations of ELCFS: Liu et al., "FedDG:
Federated Domain Generalization on Medical Image Segmentation via Episodic Learning in Continuous Frequency Space", CVPR
2021, https://arxiv.org/abs/2103.06030. Only a small window of low frequencies changes, so thin matrix products compute
the window, and add its change to the image, instead of two full FFTs.

- Frequencies are counted in cycles per field of view along each axis: on a 320 x 384 image, frequency 2 is two waves
  over the 320 rows or the 384 columns. The window is a square (or cube) of side S = 2 * floor(alpha * min(size)) + 1
  with frequency 0 in the middle.
- Amplitudes are divided by the number of pixels, so they have the unit of the image, and the middle of the window is
  the absolute mean of the channel. Between images of different size this keeps the brightness.
- Images must be non-negative. The phase of frequency 0 does not change, so an image with a negative mean (for example
  after z-scoring) would get the other image's mean with the wrong sign. Exchange first, normalise later.
- An amplitude of 0 has no phase. The computed phase depends on rounding errors, so the restyled copies of a constant
  image or of a vertical bar would differ between float32 and float64, or between devices, by up to 0.2 for intensities
  in [0, 1]. The phase is therefore 0 wherever the amplitude is at most 1e-6 of the largest amplitude in the window.
- Half precision is computed in float32, also inside autocast.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

# An amplitude up to this fraction of the largest one counts as 0. Rounding in float32 gives up to 4e-7 in images of up
# to 1024 x 1024 pixels. The same fraction for all dtypes, so that float32 and float64 agree.
ZERO_AMPLITUDE = 1e-6


@dataclass(frozen=True)
class LowFrequencySpectrum:
    """The low-frequency part of the Fourier transform of a batch of real images."""

    # (B, C, S, [S,] half_width + 1), complex, in the unit of the images, divided by the number of pixels. Frequencies
    # run from -half_width to half_width, on the last axis from 0, because the other half is the complex conjugate.
    spectrum: Tensor
    half_width: int  # the highest frequency of the window, in cycles per field of view; S = 2 * half_width + 1
    shape: tuple[int, ...]  # (H, W[, D]), the spatial size of the images in pixels

    def window(self) -> Tensor:
        """Return (B, C, S, S[, S]): the amplitudes of frequencies from -half_width to half_width, 0 centred."""
        half = self.spectrum.abs()
        spatial = tuple(range(2, half.ndim))
        return torch.cat([half[..., 1:].flip(spatial), half], dim=-1)  # A(-u) = A(u)


def window_half_width(shape: tuple[int, ...], alpha: float) -> int:
    """Return the highest frequency of the window, floor(alpha * min(shape)), in cycles per field of view.

    A product that is below a whole number only by a rounding error (such as 0.29 * 100) counts as the whole number.
    """
    if not 0 <= alpha < 0.5:
        raise ValueError(f"alpha must be in [0, 0.5), got {alpha}")
    return min(math.floor(alpha * min(shape) + 1e-9), (min(shape) - 1) // 2)


def low_frequency_spectrum(images: Tensor, alpha: float) -> LowFrequencySpectrum:
    """Compute the low-frequency part of the Fourier transform of a batch of images.

    Args:
        images: (B, C, H, W[, D]), non-negative, floating point, in any intensity unit.
        alpha: in [0, 0.5). The highest frequency is floor(alpha * min(H, W[, D])) cycles per field of view.

    Returns:
        The spectrum for all frequencies up to the highest one along each axis, divided by the number of pixels:
        complex64, or complex128 for float64 images.

    Raises:
        ValueError: if the images are not a batch of floating-point 2-D or 3-D images, or alpha is outside [0, 0.5).
    """
    _check_images(images)
    shape = tuple(images.shape[2:])
    half = window_half_width(shape, alpha)
    with _without_autocast(images):
        values = images.to(_working_type(images))
        waves = torch.view_as_real(_fourier_matrix(shape[-1], 0, half, values)).flatten(1)
        spectrum = torch.view_as_complex((values @ waves).unflatten(-1, (half + 1, 2)))
        for axis, size in enumerate(shape[:-1], start=2):
            spectrum = _multiply_axis(spectrum, _fourier_matrix(size, -half, half, values), axis)
    return LowFrequencySpectrum(spectrum / math.prod(shape), half, shape)


def mix_amplitude(images: Tensor, low_frequencies: LowFrequencySpectrum, window: Tensor, ratio: Tensor) -> Tensor:
    """Mix the low-frequency amplitudes of images with given amplitudes; keep the phase.

    This is `exchange_amplitude` for a spectrum that is already computed, which is faster if several changed copies of
    the same images are needed.

    Args:
        images: (B, C, H, W[, D]), non-negative, the images whose spectrum was computed.
        low_frequencies: the spectrum of these images, from `low_frequency_spectrum`.
        window: (B, C, S, S[, S]), the given amplitudes, as `low_frequency_window` returns them for the same alpha.
        ratio: (B,) in [0, 1], the weight of the given amplitudes. 0 returns the image up to rounding; 1 replaces all
            amplitudes of the low frequencies.

    Returns:
        (B, C, H, W[, D]), real, in the dtype and unit of `images`, not clipped to any range.

    Raises:
        ValueError: if the spectrum, window or ratio does not fit the images, or a ratio is outside [0, 1].
    """
    _check_window(images, low_frequencies, window)
    if tuple(ratio.shape) != (len(images),):
        raise ValueError(f"ratio must be ({len(images)},), one for each image, got {tuple(ratio.shape)}")
    if not bool(((ratio >= 0) & (ratio <= 1)).all()):
        raise ValueError(f"every ratio must be in [0, 1], got {ratio.tolist()}")
    ratio = ratio.to(low_frequencies.spectrum.real).view(-1, *[1] * (window.ndim - 1))
    return _add_change(images, low_frequencies, window.to(images.device), ratio)


def replace_amplitude(images: Tensor, low_frequencies: LowFrequencySpectrum, window: Tensor) -> Tensor:
    """Do the same as `mix_amplitude` with ratio 1: replace the low-frequency amplitudes of images; keep the phase.

    No value of a tensor decides which operations run, so that `torch.export` can record them.
    """
    _check_window(images, low_frequencies, window)
    return _add_change(images, low_frequencies, window, 1.0)


def _add_change(images: Tensor, low_frequencies: LowFrequencySpectrum, window: Tensor, ratio: Tensor | float) -> Tensor:
    """Return images plus the inverse transform of the change of their low-frequency amplitudes (eq. 2-3)."""
    half, shape = low_frequencies.half_width, low_frequencies.shape
    with _without_autocast(images):
        values = images.to(_working_type(images))
        amplitude = low_frequencies.spectrum.abs()
        phase = _phase_factors(low_frequencies.spectrum, amplitude)
        given = window[..., half:].to(amplitude.dtype)
        change = ratio * (given - amplitude) * phase  # eq. 2: (A' - A) e^{iP}
        for axis, size in enumerate(shape[:-1], start=2):
            change = _multiply_axis(change, _fourier_matrix(size, -half, half, values).conj().T, axis)
        waves = torch.view_as_real(_fourier_matrix(shape[-1], 0, half, values)).flatten(1)
        waves = torch.cat([waves[:, :2], 2 * waves[:, 2:]], dim=1)  # and its conjugate
        rows = torch.view_as_real(change).flatten(-2).reshape(-1, waves.shape[1])
        styled = torch.addmm(values.reshape(-1, shape[-1]), rows, waves.T)  # eq. 3: x + Re sum_u ...
    return styled.view(values.shape).to(images.dtype)


def exchange_amplitude(images: Tensor, window: Tensor, ratio: Tensor, alpha: float) -> Tensor:
    """Mix the low-frequency amplitudes of images with those of other images; keep the phase.

        new amplitude = (1 - ratio) * own amplitude + ratio * other amplitude      for the low frequencies

    Implements eq. 2-3 of ELCFS (Liu et al., CVPR 2021, https://arxiv.org/abs/2103.06030).

    Args:
        images: (B, C, H, W[, D]), non-negative, floating point, in any intensity unit.
        window: (B, C, S, S[, S]), the amplitudes of the other images, one for each image of the batch, as
            `low_frequency_window` returns them for the same alpha. S = 2 * floor(alpha * min(H, W[, D])) + 1.
        ratio: (B,) in [0, 1], the weight of the other amplitudes. 0 returns the image up to rounding; 1 replaces all
            amplitudes of the low frequencies.
        alpha: in [0, 0.5). The highest low frequency is floor(alpha * min(H, W[, D])) cycles per field of view. 0
            changes only the mean of each channel. The paper uses 0.01. The authors' released data loader uses 0, with a
            ratio of 1.

    Returns:
        (B, C, H, W[, D]), real, in the dtype and unit of `images`, not clipped to any range.

    Raises:
        ValueError: if the window or ratio does not fit the images, or alpha or a ratio is out of range.
    """
    return mix_amplitude(images, low_frequency_spectrum(images, alpha), window, ratio)


def low_frequency_window(images: Tensor, alpha: float) -> Tensor:
    """Return the amplitudes of the lowest frequencies of images.

    A site sends these numbers to other sites, which mix them into the spectra of their own images with
    `exchange_amplitude`.

    Args:
        images: (B, C, H, W[, D]), non-negative, floating point, in any intensity unit.
        alpha: in [0, 0.5). The highest frequency is floor(alpha * min(H, W[, D])) cycles per field of view.

    Returns:
        (B, C, S, S[, S]) with S = 2 * floor(alpha * min(H, W[, D])) + 1, frequency 0 in the middle. Amplitudes are at
        least 0, in the unit of the images, and divided by the number of pixels: the amplitude of frequency 0 is the
        mean of the channel.

    Raises:
        ValueError: if the images are not a batch of floating-point 2-D or 3-D images, or alpha is outside [0, 0.5).
    """
    return low_frequency_spectrum(images, alpha).window()


def pack_window(window: Tensor) -> Tensor:
    """Return the first half of each window of amplitudes (..., S, S), frequency 0 last.

    The second half repeats the same numbers, as the amplitudes of a real image are point-symmetric around frequency 0:
    a window of 7 x 7 frequencies has 25 different numbers, 300 bytes for an RGB image in float32.
    """
    flat = window.flatten(-2)
    return flat[..., : (flat.shape[-1] + 1) // 2]


def unpack_window(packed: Tensor) -> Tensor:
    """Restore the windows (..., S, S) from their first halves (..., (S^2 + 1) / 2) of `pack_window`."""
    count = 2 * packed.shape[-1] - 1
    side = math.isqrt(count)
    if side**2 != count:
        raise ValueError(
            f"{packed.shape[-1]} values do not fit a window with an odd side S; expected half of the window's values "
            "and its centre, such as 5, 13 or 25 values (S = 3, 5 or 7)"
        )
    return torch.cat([packed, packed[..., :-1].flip(-1)], dim=-1).unflatten(-1, (side, side))


def _phase_factors(spectrum: Tensor, amplitude: Tensor) -> Tensor:
    """Return e^{iP} for the phases P of a spectrum (B, C, S, ...); 1 where the amplitude is 0 up to rounding."""
    largest = amplitude.amax(dim=tuple(range(2, amplitude.ndim)), keepdim=True)
    angle = spectrum.angle()
    factors = torch.exp(torch.complex(torch.zeros_like(angle), angle))
    return torch.where(amplitude > ZERO_AMPLITUDE * largest, factors, torch.ones_like(factors))


def _fourier_matrix(size: int, lowest: int, highest: int, like: Tensor) -> Tensor:
    """Return exp(-2 pi i u x / size) for pixel x (rows) and frequency u (columns); do not change it in place."""
    return _cached_fourier_matrix(int(size), lowest, highest, like.device, like.dtype.to_complex())


@lru_cache(maxsize=32)
def _cached_fourier_matrix(size: int, lowest: int, highest: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Compute the matrix of `_fourier_matrix`; `torch.export` takes one from the cache as a constant."""
    if torch.compiler.is_exporting():  # the cache would store a tensor without values
        raise RuntimeError("call the network once before torch.export, with images of the same size")
    phases = torch.outer(torch.arange(size), torch.arange(lowest, highest + 1)) % size
    waves = torch.exp(-2j * math.pi / size * phases.double())
    return waves.to(device=device, dtype=dtype)


def _without_autocast(images: Tensor) -> AbstractContextManager[None]:
    device = images.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def _multiply_axis(values: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """Multiply one axis of `values` by `matrix` (old size, new size)."""
    return torch.tensordot(values, matrix, dims=([axis], [0])).movedim(-1, axis)


def _working_type(images: Tensor) -> torch.dtype:
    return torch.float64 if images.dtype == torch.float64 else torch.float32


def _check_images(images: Tensor) -> None:
    if images.ndim not in (4, 5) or not images.is_floating_point():
        raise ValueError(f"images must be floating point, (B, C, H, W[, D]), got {images.dtype} {tuple(images.shape)}")


def _check_window(images: Tensor, low_frequencies: LowFrequencySpectrum, window: Tensor) -> None:
    side = 2 * low_frequencies.half_width + 1
    analysed = (*low_frequencies.spectrum.shape[:2], *low_frequencies.shape)
    if tuple(images.shape) != analysed:
        raise ValueError(f"the spectrum belongs to images {analysed}, got images {tuple(images.shape)}")
    expected = (*images.shape[:2], *[side] * len(low_frequencies.shape))
    if tuple(window.shape) != expected:
        raise ValueError(f"window must be {expected} for images {analysed}, got {tuple(window.shape)}")
