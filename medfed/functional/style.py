"""The style of an image as the mean and deviation of its feature channels, and giving it to another image.

    t = std_s * (F - mean(F)) / std(F) + mean_s          Huang & Belongie, ICCV 2017, eq. 8 (AdaIN)
    t_alpha = alpha * t + (1 - alpha) * F                their eq. 14

CCST (Chen et al., WACV 2023) shares these numbers between hospitals, of one image or of all pixels of a whole site
(`Moments`). Deviations have 1e-5 under the root, as in the published decoders: a constant channel stays finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1e-5


def channel_mean_std(features: Tensor, epsilon: float = EPSILON) -> tuple[Tensor, Tensor]:
    """Mean and deviation of every channel of every image.

    Args:
        features: (B, C, H, W), floating point.
        epsilon: what stands under the root beside the variance, above 0.

    Returns:
        mean and std, each (B, C): std = sqrt(variance + epsilon), where the variance is unbiased (divided by H*W - 1)
        but for a map of one number, whose variance is 0. float32, or float64 for float64 features.

    Raises:
        ValueError: if the features are not a batch of floating-point maps.
    """
    _check_maps(features)
    values = features if features.dtype == torch.float64 else features.float()
    one_number = values.shape[2] * values.shape[3] == 1
    variance, mean = torch.var_mean(values, dim=(2, 3), correction=0 if one_number else 1)
    return mean, (variance + epsilon).sqrt()


def replace_mean_std(features: Tensor, own: Sequence[Tensor] | Tensor, style: Sequence[Tensor] | Tensor) -> Tensor:
    """Take one mean and deviation off every channel, put another on (eq. 8).

    Args:
        features: (B, C, H, W).
        own, style: the mean and the deviation before and after, a pair of (B, C) or one (2, B, C). Whether gradients
            pass through them is the caller's choice.

    Returns:
        (B, C, H, W), of the wider type of features and statistics.
    """
    (own_mean, own_std), (mean, std) = own, style
    return (features - _as_map(own_mean)) * _as_map(std / own_std) + _as_map(mean)


def adain(features: Tensor, mean: Tensor, std: Tensor, alpha: float | Tensor = 1.0) -> Tensor:
    """Give every channel the mean and deviation of another style (AdaIN, eq. 8 and 14).

    Args:
        features: (B, C, H, W), the content.
        mean, std: (C,), one style for all, or (B, C).
        alpha: strength in [0, 1], a number or (B,). 0 returns the features, 1 takes the style whole; linear between.

    Returns:
        The shape and type of `features`. A constant channel becomes the style's mean.

    Raises:
        ValueError: if mean or std does not fit, or alpha is outside [0, 1].
    """
    own_mean, own_std = channel_mean_std(features)
    mean, std = (_expand_to_batch(name, value, own_mean) for name, value in (("mean", mean), ("std", std)))
    values = features.to(own_mean.dtype)
    styled = replace_mean_std(values, (own_mean, own_std), (mean, std))                          # eq. 8
    styled = torch.lerp(values, styled, _check_alpha(alpha, own_mean))                      # eq. 14
    return styled.to(features.dtype)


def moment_match(image: Tensor, mean: Tensor, std: Tensor, alpha: float | Tensor = 1.0) -> Tensor:
    """AdaIN on the intensities themselves: a site's brightness, contrast and colour, and nothing else.

    A per-channel affine map cannot move an edge, so masks stay right; use it where a decoder would redraw small
    structures. Equation, arguments and errors as in `adain`.

    Args:
        image: (B, C, H, W) in [0, 1].
        mean, std: (C,) or (B, C), of intensities in [0, 1].
        alpha: strength in [0, 1].

    Returns:
        (B, C, H, W), clamped to [0, 1]; where that cuts, mean and deviation fall short of the style's.
    """
    return adain(image, mean, std, alpha).clamp(0, 1)


@dataclass(frozen=True)
class PixelMoments:
    """Mean and deviation over all pixels of any number of images, a batch at a time (the overall style of CCST).

    Batches are merged by the formula of Chan, Golub and LeVeque (1983), in float64: no sum of squares is ever kept,
    which in float32 loses half the digits. Order and size of the batches do not matter, up to rounding.

        n = n_a + n_b,  d = mean_b - mean_a,  mean = mean_a + d n_b / n,  M = M_a + M_b + d^2 n_a n_b / n

    count: pixels so far.
    mean: (C,), float64.
    deviations: (C,), float64, the sum M of squared deviations from the mean.
    """

    count: int
    mean: Tensor
    deviations: Tensor

    @classmethod
    def from_features(cls, features: Tensor) -> PixelMoments:
        """Of one batch (B, C, H, W); raises ValueError as `statistics` does, or if there is no pixel."""
        _check_maps(features)
        pixels = features.detach().double().movedim(1, 0).flatten(1)
        if pixels.shape[1] == 0:
            raise ValueError(f"features must hold a pixel, got {tuple(features.shape)}")
        mean = pixels.mean(dim=1)
        return cls(pixels.shape[1], mean, (pixels - mean[:, None]).square().sum(dim=1))

    def add(self, features: Tensor) -> PixelMoments:
        """These and one more batch (B, C, H, W)."""
        return self.merge(PixelMoments.from_features(features))

    def merge(self, other: PixelMoments) -> PixelMoments:
        """These and others together; ValueError if they have another number of channels."""
        if self.mean.shape != other.mean.shape:
            raise ValueError(f"cannot merge moments of {len(self.mean)} and {len(other.mean)} channels")
        count = self.count + other.count
        difference = other.mean - self.mean
        between = difference.square() * (self.count * other.count / count)
        mean = self.mean + difference * (other.count / count)
        return PixelMoments(count, mean, self.deviations + other.deviations + between)

    @property
    def std(self) -> Tensor:
        """(C,), float64: sqrt(population variance + 1e-5)."""
        return (self.deviations / self.count + EPSILON).sqrt()


def _check_maps(features: Tensor) -> None:
    if features.ndim != 4 or not features.is_floating_point():
        raise ValueError(f"features must be floating point, (B, C, H, W), got {features.dtype} {tuple(features.shape)}")


def _expand_to_batch(name: str, value: Tensor, like: Tensor) -> Tensor:
    """(C,) or (B, C) to (B, C), of the type and on the device of `like`."""
    if tuple(value.shape) not in (tuple(like.shape), tuple(like.shape[1:])):
        raise ValueError(f"{name} must be ({like.shape[1]},) or {tuple(like.shape)}, got {tuple(value.shape)}")
    return value.to(like).expand(like.shape)


def _check_alpha(alpha: float | Tensor, like: Tensor) -> Tensor:
    """A number or (B,) to a number or (B, 1, 1, 1), of the type of `like`."""
    given = torch.as_tensor(alpha, dtype=like.dtype, device=like.device)
    if tuple(given.shape) not in ((), (len(like),)):
        raise ValueError(f"alpha must be a number or ({len(like)},), got {tuple(given.shape)}")
    if not bool(((given >= 0) & (given <= 1)).all()):
        raise ValueError(f"alpha must be in [0, 1], got {given.tolist()}")
    return given if given.ndim == 0 else given[:, None, None, None]


def _as_map(value: Tensor) -> Tensor:
    return value[..., None, None]
