"""The frequency exchange of ELCFS (Liu et al., CVPR 2021): the amplitude of another site, the phase of the image.

Only a small window of frequencies changes, so nothing here computes a full spectrum. The window is cut, and the change
put back, by thin matrix products, exactly: the result is that of the two full FFTs, to rounding.

    A' = (1 - ratio) * A + ratio * A_other      inside the window, A elsewhere          (eq. 2)
    x' = x + Re sum_u (A' - A) e^{iP} e^{2 pi i u.x / n}                                (eq. 3, the unchanged part is x)

Frequencies count cycles per field of view, along every axis: on a 320 x 384 image, frequency 2 is two waves across the
320 rows and two across the 384 columns. The window is a square (a cube) of side 2 * floor(alpha * min(size)) + 1.

Amplitudes are divided by the number of pixels: they are in the unit of the image, and the middle of the window is the
absolute mean of the channel. Between images of one size the result is that of plain |FFT|; between sizes only this
keeps the brightness.

Images must be non-negative. The phase of the mean is 0 or pi, and it is kept: an image with a negative mean (z-scored)
would come out with the other's mean and the wrong sign. Exchange first, normalise after. Half precision is computed in
float32, also under autocast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LowFrequencySpectrum:
    """The low frequencies of a batch, computed once for any number of views.

    spectrum: (B, C, S, [S,] half_width + 1), complex; frequencies -half_width to half_width, but from 0 on the last
        axis: the other half of a real image's spectrum is the mirror of this one.
    half_width: the highest frequency of the window; S = 2 * half_width + 1.
    shape: the spatial size of the images.
    """

    spectrum: Tensor
    half_width: int
    shape: tuple[int, ...]

    def window(self) -> Tensor:
        """The amplitudes of the whole window, zero frequency in the middle: (B, C, S, S[, S])."""
        half = self.spectrum.abs()
        spatial = tuple(range(2, half.ndim))
        return torch.cat([half[..., 1:].flip(spatial), half], dim=-1)                    # A(-u) = A(u)


def window_half_width(shape: tuple[int, ...], alpha: float) -> int:
    """The highest frequency that is exchanged, in cycles per field of view: floor(alpha * min(shape)).

    A product that falls short of a whole number by rounding alone (0.29 * 100) counts as that number.

    Raises:
        ValueError: if alpha is outside [0, 0.5). 0 leaves the mean alone to be exchanged.
    """
    if not 0 <= alpha < 0.5:
        raise ValueError(f"alpha must be in [0, 0.5), got {alpha}")
    return min(math.floor(alpha * min(shape) + 1e-9), (min(shape) - 1) // 2)


def low_frequency_spectrum(images: Tensor, alpha: float) -> LowFrequencySpectrum:
    """Analyse a batch once, so that `restyle` can give it the amplitudes of many sites.

    Args:
        images: (B, C, H, W[, D]), non-negative, any floating type, any intensity unit.
        alpha: half side of the window, a share of the shortest spatial side.

    Raises:
        ValueError: if the images are not a batch of 2-D or 3-D floating-point images, or alpha is outside [0, 0.5).
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


def mix_amplitude(images: Tensor, analysis: LowFrequencySpectrum, window: Tensor, ratio: Tensor) -> Tensor:
    """One view of a batch: its low-frequency amplitude moved towards another site's, its phase kept (eq. 2-3).

    Args:
        images: (B, C, H, W[, D]), the batch that was analysed.
        analysis: of these images, from `analyse`.
        window: (B, C, S, S[, S]), the other site's amplitudes, as `low_frequency_window` cuts them (point-symmetric).
        ratio: (B,) in [0, 1]. 0 returns the image; 1 takes the other's amplitude whole.

    Returns:
        The shape and type of `images`, real, in their unit; not clipped.

    Raises:
        ValueError: if window, ratio and images do not belong together, or a ratio is outside [0, 1].
    """
    half, shape = analysis.half_width, analysis.shape
    _check_window(images, analysis, window, ratio)
    with torch.autocast(images.device.type, enabled=False):
        values = images.to(_working_type(images))
        amplitude = analysis.spectrum.abs()
        phase = torch.exp(1j * analysis.spectrum.angle())                                # of no amplitude: angle 0
        ratio = ratio.to(amplitude).view(-1, *[1] * (window.ndim - 1))
        change = ratio * (window[..., half:].to(amplitude) - amplitude) * phase          # (A' - A) e^{iP}
        for axis, size in enumerate(shape[:-1], start=2):
            change = _multiply_axis(change, _fourier_matrix(size, -half, half, values).conj().T, axis)
        waves = torch.view_as_real(_fourier_matrix(shape[-1], 0, half, values)).flatten(1)
        waves[:, 2:] *= 2                                                                # the mirrored half
        rows = torch.view_as_real(change).flatten(-2).reshape(-1, waves.shape[1])
        styled = torch.addmm(values.reshape(-1, shape[-1]), rows, waves.T)  # x + Re sum_u ...
    return styled.view(values.shape).to(images.dtype)


def exchange_amplitude(images: Tensor, window: Tensor, ratio: Tensor, alpha: float) -> Tensor:
    """Give images the low-frequency amplitude of another site; their phase stays (ELCFS eq. 2-3).

    Analyses and restyles in one call; arguments, result and errors as in these two.

    Departs from the authors' released loader, which swaps the window whole and uses alpha = 0.
    """
    return mix_amplitude(images, low_frequency_spectrum(images, alpha), window, ratio)


def low_frequency_window(images: Tensor, alpha: float) -> Tensor:
    """The amplitudes of the lowest frequencies, zero in the middle: (B, C, S, S[, S]), in the unit of the images.

    This is all that a site need share. Arguments and errors as in `analyse`.
    """
    return low_frequency_spectrum(images, alpha).window()


def pack_window(window: Tensor, spatial_dims: int = 2) -> Tensor:
    """The unique numbers of a window: (..., S, S[, S]) to (..., (n + 1) / 2), where n = S^spatial_dims.

    A real image's amplitudes are point-symmetric: 25 of the 49 numbers of a 7 x 7 window say it all (300 bytes for an
    RGB image in float32).
    """
    flat = window.flatten(-spatial_dims)
    return flat[..., : (flat.shape[-1] + 1) // 2]


def unpack_window(packed: Tensor, spatial_dims: int = 2) -> Tensor:
    """The window that `pack_window` packed: (..., (n + 1) / 2) to (..., S, S[, S]).

    Raises:
        ValueError: if no odd side S fits the count.
    """
    count = 2 * packed.shape[-1] - 1
    side = round(count ** (1 / spatial_dims))
    if side**spatial_dims != count:
        raise ValueError(f"{packed.shape[-1]} numbers are not half of a {spatial_dims}-D window of odd side")
    return torch.cat([packed, packed[..., :-1].flip(-1)], dim=-1).unflatten(-1, (side,) * spatial_dims)


def _fourier_matrix(size: int, lowest: int, highest: int, like: Tensor) -> Tensor:
    """exp(-2 pi i u x / size), x down the rows, u from lowest to highest along the columns; angles in float64."""
    turns = torch.outer(torch.arange(size), torch.arange(lowest, highest + 1)) % size
    waves = torch.exp(-2j * math.pi / size * turns.double())
    return waves.to(device=like.device, dtype=like.dtype.to_complex())


def _multiply_axis(values: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """Replace one axis of `values` by its product with `matrix` (old size, new size)."""
    return torch.tensordot(values, matrix, dims=([axis], [0])).movedim(-1, axis)


def _working_type(images: Tensor) -> torch.dtype:
    return torch.float64 if images.dtype == torch.float64 else torch.float32


def _check_images(images: Tensor) -> None:
    if images.ndim not in (4, 5) or not images.is_floating_point():
        raise ValueError(
            f"images must be floating point, (B, C, H, W[, D]), got {images.dtype} {tuple(images.shape)}"
        )


def _check_window(images: Tensor, analysis: LowFrequencySpectrum, window: Tensor, ratio: Tensor) -> None:
    side = 2 * analysis.half_width + 1
    analysed = (*analysis.spectrum.shape[:2], *analysis.shape)
    if tuple(images.shape) != analysed:
        raise ValueError(f"the analysis is of images {analysed}, not of these {tuple(images.shape)}")
    expected = (*images.shape[:2], *[side] * len(analysis.shape))
    if tuple(window.shape) != expected:
        raise ValueError(f"window must be {expected} for images {analysed}, got {tuple(window.shape)}")
    if tuple(ratio.shape) != (len(images),):
        raise ValueError(f"ratio must be ({len(images)},), one for each image, got {tuple(ratio.shape)}")
    if not bool(((ratio >= 0) & (ratio <= 1)).all()):
        raise ValueError(f"every ratio must be in [0, 1], got {ratio.tolist()}")
