"""Image style as the mean and standard deviation of feature channels, and its transfer to other images (AdaIN).

    t = std_s * (F - mean(F)) / std(F) + mean_s          eq. 8
    t_alpha = alpha * t + (1 - alpha) * F                eq. 14

Equations of Huang & Belongie, "Arbitrary Style Transfer in Real-time with Adaptive Instance Normalization", ICCV 2017,
https://arxiv.org/abs/1703.06868. As in the published decoders, standard deviations have 1e-5 added under the square
root, so a constant channel stays finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1e-5  # added to variances under the square root


def channel_mean_std(features: Tensor, epsilon: float = EPSILON) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation over the pixels of every channel of every image or feature map.

    Args:
        features: (B, C, H, W), or (B, C, X, Y, Z) of volumes; floating point: images or feature maps.
        epsilon: added to the variance under the square root, above 0.

    Returns:
        mean and std, each (B, C), float32 (float64 for float64 features). std = sqrt(variance + epsilon); the variance
        is unbiased (divided by the number of pixels minus 1), and 0 for a map of one pixel.

    Raises:
        ValueError: if the features are not floating-point maps.
    """
    _check_maps(features)
    values = features if features.dtype == torch.float64 else features.float()
    one_number = values.shape[2:].numel() == 1
    variance, mean = torch.var_mean(values, dim=tuple(range(2, values.ndim)), correction=0 if one_number else 1)
    return mean, (variance + epsilon).sqrt()


def replace_mean_std(features: Tensor, own: Sequence[Tensor] | Tensor, style: Sequence[Tensor] | Tensor) -> Tensor:
    """Normalise every channel with its own mean and standard deviation, then give it a new mean and standard deviation.

        std * (features - own mean) / own std + mean

    This is eq. 8 of AdaIN (Huang & Belongie, ICCV 2017, https://arxiv.org/abs/1703.06868).

    Args:
        features: (B, C, H, W), or (B, C, X, Y, Z) of volumes; floating point.
        own: mean and standard deviation of the features, as `channel_mean_std` returns them: a pair of tensors (B, C),
            or one tensor (2, B, C). Standard deviations must not be 0.
        style: mean and standard deviation to apply, in the form of `own`.

    Returns:
        In the shape of `features`, and the wider dtype of features and statistics. Gradients also flow through the
        statistics.
    """
    (own_mean, own_std), (mean, std) = own, style
    own_mean, scale, mean = (_as_map(value, features.ndim) for value in (own_mean, std / own_std, mean))
    return (features - own_mean) * scale + mean  # eq. 8


def adain(features: Tensor, mean: Tensor, std: Tensor, alpha: float | Tensor = 1.0) -> Tensor:
    """Give every channel the mean and standard deviation of another style (adaptive instance normalisation).

    Implements eq. 8 and 14 of Huang & Belongie, ICCV 2017, https://arxiv.org/abs/1703.06868.

    Args:
        features: (B, C, H, W), or (B, C, X, Y, Z) of volumes; floating point: feature maps or images.
        mean: the mean of each channel in the new style: (C,), one style for all images, or (B, C), one style per image.
        std: the standard deviation of each channel in the new style, in the shape of `mean`.
        alpha: strength in [0, 1], one number for all images or (B,). 0 returns the features, 1 applies the style fully.

    Returns:
        In the shape and dtype of `features`; computed in float32 or float64. At alpha = 1 a constant channel becomes
        the style's mean.

    Raises:
        ValueError: if mean or std has another shape, or alpha is outside [0, 1].
    """
    own_mean, own_std = channel_mean_std(features)
    mean, std = (_expand_to_batch(name, value, own_mean) for name, value in (("mean", mean), ("std", std)))
    values = features.to(own_mean.dtype)
    styled = replace_mean_std(values, (own_mean, own_std), (mean, std))  # eq. 8
    styled = torch.lerp(values, styled, _as_map(_check_alpha(alpha, own_mean), features.ndim))  # eq. 14
    return styled.to(features.dtype)


def moment_match(image: Tensor, mean: Tensor, std: Tensor, alpha: float | Tensor = 1.0) -> Tensor:
    """Give the intensities of every channel of an image another mean and standard deviation, clamped to [0, 1].

    This changes only brightness, contrast and colour. A linear map of intensities cannot move an edge, so segmentation
    masks stay valid. (A decoder network, as in AdaIN, may redraw small structures.)

    Args:
        image: (B, C, H, W) or (B, C, X, Y, Z) in [0, 1], floating point.
        mean: the mean intensity of each channel to apply, in [0, 1]: (C,) for all images, or (B, C), one per image.
        std: the standard deviation of the intensities of each channel to apply, in the shape of `mean`.
        alpha: strength in [0, 1], one number for all images or (B,). 0 returns the image, clamped.

    Returns:
        In [0, 1], in the shape and dtype of `image`. Where values were clamped, mean and standard deviation differ
        from the given ones.

    Raises:
        ValueError: if mean or std has another shape, or alpha is outside [0, 1].
    """
    return adain(image, mean, std, alpha).clamp(0, 1)


@dataclass(frozen=True)
class PixelMoments:
    """Mean and standard deviation per channel over all pixels of any number of images, updated batch by batch.

        n = n_a + n_b,  d = mean_b - mean_a,  mean = mean_a + d n_b / n,  M = M_a + M_b + d^2 n_a n_b / n

    This is the overall style of a site in CCST (https://arxiv.org/abs/2210.00912). `count` is n, `deviations` is M, the
    sum of the squared differences from the mean. Batches are merged in float64 with this formula of Chan, Golub and
    LeVeque ("Algorithms for Computing the Sample Variance", The American Statistician 37(3), 1983), because a sum of
    squares would lose half of the digits in float32.
    """

    count: int
    mean: Tensor
    deviations: Tensor

    @classmethod
    def from_features(cls, features: Tensor) -> PixelMoments:
        _check_maps(features)
        pixels = features.detach().double().movedim(1, 0).flatten(1)
        if pixels.shape[1] == 0:
            raise ValueError(f"features must contain at least one pixel, got {tuple(features.shape)}")
        mean = pixels.mean(dim=1)
        return cls(pixels.shape[1], mean, (pixels - mean[:, None]).square().sum(dim=1))

    def merge(self, other: PixelMoments) -> PixelMoments:
        if self.mean.shape != other.mean.shape:
            raise ValueError(f"cannot merge moments of {len(self.mean)} and {len(other.mean)} channels")
        count = self.count + other.count
        difference = other.mean - self.mean
        between = difference.square() * (self.count * other.count / count)
        mean = self.mean + difference * (other.count / count)
        return PixelMoments(count, mean, self.deviations + other.deviations + between)

    @property
    def std(self) -> Tensor:
        """Standard deviation of each channel over all pixels, (C,): sqrt(deviations / count + 1e-5), never 0."""
        return (self.deviations / self.count + EPSILON).sqrt()


def _check_maps(features: Tensor) -> None:
    if features.ndim not in (4, 5) or not features.is_floating_point():
        got = f"{features.dtype} {tuple(features.shape)}"
        raise ValueError(f"features must be floating point, (B, C, H, W) or (B, C, X, Y, Z), got {got}")


def _expand_to_batch(name: str, value: Tensor, like: Tensor) -> Tensor:
    """Expand (C,) or (B, C) to (B, C), in the dtype and on the device of `like` (B, C)."""
    if tuple(value.shape) not in (tuple(like.shape), tuple(like.shape[1:])):
        raise ValueError(f"{name} must be ({like.shape[1]},) or {tuple(like.shape)}, got {tuple(value.shape)}")
    return value.to(like).expand(like.shape)


def _check_alpha(alpha: float | Tensor, like: Tensor) -> Tensor:
    """Check alpha, a number or (B,), and return it as a scalar tensor or (B, 1), in the dtype of `like`."""
    strength = torch.as_tensor(alpha, dtype=like.dtype, device=like.device)
    if tuple(strength.shape) not in ((), (len(like),)):
        raise ValueError(f"alpha must be a number or ({len(like)},), got {tuple(strength.shape)}")
    if not bool(((strength >= 0) & (strength <= 1)).all()):
        raise ValueError(f"alpha must be in [0, 1], got {strength.tolist()}")
    return strength if strength.ndim == 0 else strength[:, None]


def _as_map(value: Tensor, n_axes: int) -> Tensor:
    """Append axes of size 1 to (B, C) or (B, 1), so that it broadcasts to maps with `n_axes` axes."""
    return value.reshape(*value.shape, *[1] * (n_axes - 2))
