"""Exchange the low-frequency amplitude of images while their phase stays, as in ELCFS and FDA.

    A' = (1 - ratio) * A + ratio * A_other      inside the window, A elsewhere          (eq. 2)
    x' = F^-1(A', P) = x + Re sum_u (A' - A) e^{iP} e^{2 pi i u.x / n}                  (eq. 3)

A and P are the amplitude and phase of the image's discrete Fourier transform F. Equations of ELCFS: Liu et al., "FedDG:
Federated Domain Generalization on Medical Image Segmentation via Episodic Learning in Continuous Frequency Space", CVPR
2021, https://arxiv.org/abs/2103.06030. Only a small window of low frequencies changes, so no full spectrum is computed:
thin matrix products give the window, and add its change to the image. The result equals that of two full FFTs up to
rounding.

Conventions:

- Frequencies are counted in cycles per field of view along each axis: on a 320 x 384 image, frequency 2 is two waves
  over the 320 rows or the 384 columns. The window is a square (or cube) of side S = 2 * floor(alpha * min(size)) + 1
  with frequency 0 in the middle.
- Amplitudes are divided by the number of pixels, so they have the unit of the image, and the middle of the window is
  the absolute mean of the channel. Between images of equal size this gives the same result as the plain |FFT|; between
  images of different size it keeps the brightness.
- Images must be non-negative. The phase of frequency 0 is 0 or pi and does not change, so an image with a negative mean
  (for example after z-scoring) would get the other image's mean with the wrong sign. Exchange first, normalise later.
- Half precision is computed in float32, also inside autocast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LowFrequencySpectrum:
    """The low-frequency part of the Fourier transform of a batch of real images.

    Compute it once with `low_frequency_spectrum`; `mix_amplitude` then makes any number of views from it.

    Args:
        spectrum: (B, C, S, [S,] half_width + 1), complex, in the unit of the images. Frequencies run from -half_width
            to half_width, on the last axis from 0 to half_width: the other half is the complex conjugate.
        half_width: the highest frequency of the window, in cycles per field of view; S = 2 * half_width + 1.
        shape: (H, W[, D]), the spatial size of the images in pixels.
    """

    spectrum: Tensor
    half_width: int
    shape: tuple[int, ...]

    def window(self) -> Tensor:
        """Return the amplitudes of the whole window, (B, C, S, S[, S]), with frequency 0 in the middle."""
        half = self.spectrum.abs()
        spatial = tuple(range(2, half.ndim))
        return torch.cat([half[..., 1:].flip(spatial), half], dim=-1)                    # A(-u) = A(u)


def window_half_width(shape: tuple[int, ...], alpha: float) -> int:
    """Return the highest frequency that is exchanged: floor(alpha * min(shape)), in cycles per field of view.

    A product that misses a whole number by rounding only (such as 0.29 * 100) counts as that number.

    Args:
        shape: the spatial size of the image in pixels.
        alpha: half of the window's side as a fraction of the shortest spatial side, in [0, 0.5). 0 exchanges only the
            mean.

    Returns:
        The half width, at least 0.

    Raises:
        ValueError: if alpha is outside [0, 0.5).
    """
    if not 0 <= alpha < 0.5:
        raise ValueError(f"alpha must be in [0, 0.5), got {alpha}")
    return min(math.floor(alpha * min(shape) + 1e-9), (min(shape) - 1) // 2)


def low_frequency_spectrum(images: Tensor, alpha: float) -> LowFrequencySpectrum:
    """Compute the low-frequency part of the Fourier transform of a batch of images.

    Args:
        images: (B, C, H, W[, D]), non-negative, floating point, in any intensity unit.
        alpha: half of the window's side as a fraction of the shortest spatial side, in [0, 0.5).

    Returns:
        The spectrum, complex64 (complex128 for float64 images).

    Raises:
        ValueError: if the images are not a batch of floating-point 2-D or 3-D images, or alpha is outside [0, 0.5).
    """
    _check_images(images)
    shape = tuple(images.shape[2:])
    half = window_half_width(shape, alpha)
    with torch.autocast(images.device.type, enabled=False):
        values = images.to(_working_type(images))
        waves = torch.view_as_real(_fourier_matrix(shape[-1], 0, half, values)).flatten(1)
        spectrum = torch.view_as_complex((values @ waves).unflatten(-1, (half + 1, 2)))
        for axis, size in enumerate(shape[:-1], start=2):
            spectrum = _multiply_axis(spectrum, _fourier_matrix(size, -half, half, values), axis)
    return LowFrequencySpectrum(spectrum / math.prod(shape), half, shape)


def mix_amplitude(images: Tensor, low_frequencies: LowFrequencySpectrum, window: Tensor, ratio: Tensor) -> Tensor:
    """Move the low-frequency amplitude of images towards another image's amplitude; keep the phase (ELCFS, eq. 2-3).

    Use this function instead of `exchange_amplitude` to make several views of the same images: their spectrum is then
    computed only once.

    Args:
        images: (B, C, H, W[, D]), non-negative, the images whose spectrum was computed.
        low_frequencies: the spectrum of these images, from `low_frequency_spectrum`.
        window: (B, C, S, S[, S]), the amplitudes to move to, as `low_frequency_window` returns them.
        ratio: (B,) in [0, 1]. 0 returns the image up to rounding; 1 replaces the amplitude inside the window.

    Returns:
        (B, C, H, W[, D]), real, in the dtype and unit of `images`, not clipped to any range.

    Raises:
        ValueError: if the spectrum, window or ratio does not fit the images, or a ratio is outside [0, 1].
    """
    half, shape = low_frequencies.half_width, low_frequencies.shape
    _check_window(images, low_frequencies, window, ratio)
    with torch.autocast(images.device.type, enabled=False):
        values = images.to(_working_type(images))
        amplitude = low_frequencies.spectrum.abs()
        phase = torch.exp(1j * low_frequencies.spectrum.angle())                         # amplitude 0 has angle 0
        ratio = ratio.to(amplitude).view(-1, *[1] * (window.ndim - 1))
        change = ratio * (window[..., half:].to(amplitude) - amplitude) * phase          # eq. 2: (A' - A) e^{iP}
        for axis, size in enumerate(shape[:-1], start=2):
            change = _multiply_axis(change, _fourier_matrix(size, -half, half, values).conj().T, axis)
        waves = torch.view_as_real(_fourier_matrix(shape[-1], 0, half, values)).flatten(1)
        waves[:, 2:] *= 2                                                                # and its conjugate
        rows = torch.view_as_real(change).flatten(-2).reshape(-1, waves.shape[1])
        styled = torch.addmm(values.reshape(-1, shape[-1]), rows, waves.T)  # eq. 3: x + Re sum_u ...
    return styled.view(values.shape).to(images.dtype)


def exchange_amplitude(images: Tensor, window: Tensor, ratio: Tensor, alpha: float) -> Tensor:
    """Move the low-frequency amplitude of images towards another image's amplitude; keep the phase (ELCFS, eq. 2-3).

    Args:
        images: (B, C, H, W[, D]), non-negative, floating point, in any intensity unit.
        window: (B, C, S, S[, S]), the amplitudes to move to, as `low_frequency_window` returns them for this alpha.
        ratio: (B,) in [0, 1]. 0 returns the image up to rounding; 1 replaces the amplitude inside the window.
        alpha: half of the window's side as a fraction of the shortest spatial side, in [0, 0.5). 0 exchanges only the
            mean. The paper uses 0.01. (The authors' released loader uses alpha = 0 and ratio = 1.)

    Returns:
        (B, C, H, W[, D]), real, in the dtype and unit of `images`, not clipped to any range.

    Raises:
        ValueError: if the window or ratio does not fit the images, or alpha or a ratio is out of range.

    Example:
        >>> images, others = torch.rand(2, 1, 64, 64), torch.rand(2, 1, 64, 64)
        >>> window = low_frequency_window(others, alpha=0.05)
        >>> window.shape
        torch.Size([2, 1, 7, 7])
        >>> exchange_amplitude(images, window, torch.tensor([0.5, 1.0]), alpha=0.05).shape
        torch.Size([2, 1, 64, 64])
    """
    return mix_amplitude(images, low_frequency_spectrum(images, alpha), window, ratio)


def low_frequency_window(images: Tensor, alpha: float) -> Tensor:
    """Return the amplitudes of the lowest frequencies of images: all that a site needs to share for the exchange.

    Args:
        images: (B, C, H, W[, D]), non-negative, floating point, in any intensity unit.
        alpha: half of the window's side as a fraction of the shortest spatial side, in [0, 0.5).

    Returns:
        (B, C, S, S[, S]), at least 0, in the unit of the images, with frequency 0 in the middle;
        S = 2 * floor(alpha * min(H, W[, D])) + 1.

    Raises:
        ValueError: if the images are not a batch of floating-point 2-D or 3-D images, or alpha is outside [0, 0.5).
    """
    return low_frequency_spectrum(images, alpha).window()


def pack_window(window: Tensor, spatial_dims: int = 2) -> Tensor:
    """Keep only the unique numbers of amplitude windows, about half of them.

    The amplitudes of a real image are point-symmetric. A 7 x 7 window has 25 unique numbers: 300 bytes for an RGB image
    in float32.

    Args:
        window: (..., S, S[, S]), as `low_frequency_window` returns it.
        spatial_dims: number of spatial axes, 2 or 3.

    Returns:
        (..., (n + 1) / 2) with n = S^spatial_dims.
    """
    flat = window.flatten(-spatial_dims)
    return flat[..., : (flat.shape[-1] + 1) // 2]


def unpack_window(packed: Tensor, spatial_dims: int = 2) -> Tensor:
    """Restore the amplitude windows that `pack_window` packed.

    Args:
        packed: (..., (n + 1) / 2) with n = S^spatial_dims.
        spatial_dims: number of spatial axes, 2 or 3.

    Returns:
        (..., S, S[, S]).

    Raises:
        ValueError: if no odd side S fits the number of values.
    """
    count = 2 * packed.shape[-1] - 1
    side = round(count ** (1 / spatial_dims))
    if side**spatial_dims != count:
        raise ValueError(f"{packed.shape[-1]} values do not fit a {spatial_dims}-D window with an odd side")
    return torch.cat([packed, packed[..., :-1].flip(-1)], dim=-1).unflatten(-1, (side,) * spatial_dims)


def _fourier_matrix(size: int, lowest: int, highest: int, like: Tensor) -> Tensor:
    """Return (size, highest - lowest + 1): exp(-2 pi i u x / size) for pixel x (rows) and frequency u (columns).

    The angles are computed in float64. Device and precision are those of `like`.
    """
    phases = torch.outer(torch.arange(size), torch.arange(lowest, highest + 1)) % size
    waves = torch.exp(-2j * math.pi / size * phases.double())
    return waves.to(device=like.device, dtype=like.dtype.to_complex())


def _multiply_axis(values: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """Multiply one axis of `values` by `matrix` (old size, new size)."""
    return torch.tensordot(values, matrix, dims=([axis], [0])).movedim(-1, axis)


def _working_type(images: Tensor) -> torch.dtype:
    return torch.float64 if images.dtype == torch.float64 else torch.float32


def _check_images(images: Tensor) -> None:
    if images.ndim not in (4, 5) or not images.is_floating_point():
        raise ValueError(
            f"images must be floating point, (B, C, H, W[, D]), got {images.dtype} {tuple(images.shape)}"
        )


def _check_window(images: Tensor, low_frequencies: LowFrequencySpectrum, window: Tensor, ratio: Tensor) -> None:
    side = 2 * low_frequencies.half_width + 1
    analysed = (*low_frequencies.spectrum.shape[:2], *low_frequencies.shape)
    if tuple(images.shape) != analysed:
        raise ValueError(f"the spectrum belongs to images {analysed}, got images {tuple(images.shape)}")
    expected = (*images.shape[:2], *[side] * len(low_frequencies.shape))
    if tuple(window.shape) != expected:
        raise ValueError(f"window must be {expected} for images {analysed}, got {tuple(window.shape)}")
    if tuple(ratio.shape) != (len(images),):
        raise ValueError(f"ratio must be ({len(images)},), one for each image, got {tuple(ratio.shape)}")
    if not bool(((ratio >= 0) & (ratio <= 1)).all()):
        raise ValueError(f"every ratio must be in [0, 1], got {ratio.tolist()}")
