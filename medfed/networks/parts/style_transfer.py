"""Style transfer between images as CCST and FISC use it: with a codec (AdaIN), or by matching intensity statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import repeat
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from medfed.core import bounds
from medfed.core.bounds import NonNegativeInt, Ratio
from medfed.core.errors import UserError
from medfed.functional.slices import as_slices, from_slices
from medfed.functional.style import adain, channel_mean_std, moment_match
from medfed.networks.parts.adain import StyleCodec, load_codec

Transfer = Literal["codec", "moments"]
Encoded = Iterator[tuple[Tensor, Tensor]]  # indices (m,) of images, and their feature maps (m, D, h, w)
MAX_BATCH = 32  # largest number of images that are read together to be encoded
BUNDLED_CODEC = "small"  # the codec that is part of medfed
MAX_PIXELS = 32 * 96 * 96  # that a codec processes at a time, which limits the memory for large images
MAX_NATIVE_ENTRIES = 20_480  # up to which PyTorch convolves a batch of one on the CPU without oneDNN
BLANK_STD = 0.02  # an image is blank if the standard deviation of its intensities, in [0, 1], is below in all channels


def shows_something(images: Tensor) -> Tensor:
    """Return which images (B, C, H, W) are not blank; the style of a blank image has no meaning."""
    return images.flatten(2).std(dim=2, correction=0).amax(dim=1) >= BLANK_STD


@dataclass(frozen=True)
class StyleTransfer:
    """Transfer of styles to images with given settings, as the methods CCST and FISC use it."""

    transfer: Transfer
    codec: str
    alpha: Ratio
    transfer_size: NonNegativeInt

    def __post_init__(self) -> None:
        bounds.check(self)

    @property
    def files(self) -> tuple[str, ...]:
        """The path of the codec; () for medfed's own codec ("small"), and for transfer "moments", which has none."""
        return (self.codec,) if self.transfer == "codec" and self.codec != BUNDLED_CODEC else ()

    def check(self, image_size: int, channels: int) -> None:
        """Raise a UserError if the codec cannot be loaded, or cannot process images of this size in pixels."""
        if self.transfer == "moments":
            return
        min_side, side = load_codec(self.codec).min_side, self.transfer_size or image_size
        if side < min_side:
            key = "method.transfer_size" if self.transfer_size else "data.image_size"
            raise UserError(f"{key} is {side}, but the codec needs at least {min_side} pixels per side; increase it")
        if channels not in (1, 3):
            raise UserError(
                f"images have {channels} channels, but the codec takes 1 or 3; set method.transfer: moments"
            )

    def features(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the codec's feature maps (b, D, h, w) of a few images at a time; "moments" yields all images as is."""
        if self.transfer == "moments":
            yield images
            return
        for part in images.split(self._batch_size(images)):
            if side := self.transfer_size:
                part = F.interpolate(part, (side, side), mode="bilinear", antialias=True).clamp(0, 1)
            yield _load_cached_codec(self.codec, images.device).encode(part)

    def encoded(self, read: Callable[[list[int]], Tensor], order: Tensor, device: torch.device) -> Encoded:
        """Encode the images with the indices `order`, which `read` returns, a few at a time, without blank ones."""
        for indices in order.split(MAX_BATCH):
            images = read(indices.tolist())
            chosen = shows_something(images)
            if chosen.any():
                used = indices[chosen]
                for features in map(Tensor.cpu, self.features(images[chosen].to(device))):
                    yield used[: len(features)], features
                    used = used[len(features) :]

    def restyle(self, images: Tensor, mean: Tensor, std: Tensor, n_styles: int | None = None) -> Tensor:
        """Return m images, or one image m times, (m, C, H, W) in [0, 1], in the styles `mean` and `std`, (m, D).

        D are the codec's feature channels, or the intensity channels for transfer "moments". The bits of one image in
        one style do not depend on the other styles: `n_styles`, by default m, counts the image's styles of all calls.
        The slices of a patch (1, C, X, Y, Z) are redrawn as images, each in the same style.
        """
        if images.ndim == 5:
            patches = images.expand(len(mean), *images.shape[1:]).split(1)
            return torch.cat([self._restyle_slices(*one) for one in zip(patches, mean, std, strict=True)])
        if len(images) not in (1, len(mean)):
            raise ValueError(f"mean and std must hold one style for each of {len(images)} images, got {len(mean)}")
        mean, std = mean.to(images), std.to(images)
        if self.transfer == "moments":
            return moment_match(images.expand(len(mean), -1, -1, -1), mean, std, self.alpha)
        features = self.features(images)
        parts = features if len(images) > 1 else repeat(next(features))
        # On a GPU the bits depend on the batch, so styles are decoded one at a time there.
        size = 1 if len(images) == 1 and images.device.type != "cpu" else self._batch_size(images)
        styles = zip(mean.split(size), std.split(size), strict=True)
        is_one_of_many = len(mean) == 1 and (n_styles or 1) > 1
        return torch.cat(
            [self._decode_in_style(part, *style, images, is_one_of_many) for style, part in zip(styles, parts)]
        )

    def _restyle_slices(self, patch: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        slices = as_slices(patch)
        mean, std = (style.expand(len(slices), -1) for style in (mean, std))
        return from_slices(self.restyle(slices, mean, std), patch)

    def to_style(self, mean: Tensor, std: Tensor, alpha: float) -> Callable[[Tensor], Tensor]:
        """Return a function that restyles images (B, C, H, W), each on its own; `mean` and `std` are (1, D).

        With a codec, strength `alpha` 0 still encodes and decodes the images.
        """
        transfer = replace(self, alpha=alpha)
        return lambda images: torch.cat([transfer.restyle(image[None], mean, std) for image in images])

    def reconstruction_error(self, images: Tensor) -> Tensor | None:
        """Return (1,): the mean absolute change in [0, 1] by encoding and decoding; None for transfer "moments"."""
        if self.transfer == "moments":
            return None
        unstyled, width = replace(self, alpha=0.0), _load_cached_codec(self.codec, images.device).channels
        redrawn = torch.cat([unstyled.restyle(image[None], *images.new_zeros(2, 1, width)) for image in images])
        return (redrawn - images).abs().mean().cpu().reshape(1)

    def _decode_in_style(
        self, features: Tensor, mean: Tensor, std: Tensor, images: Tensor, is_one_of_many: bool
    ) -> Tensor:
        """Decode features in the styles (b, D) at the transfer size, and resize the result to the images' size."""
        size, side = tuple(images.shape[2:]), self.transfer_size
        if is_one_of_many and _is_small(features, _load_cached_codec(self.codec, images.device).encoder.channels):
            mean, std = mean.expand(2, -1), std.expand(2, -1)  # decoded twice, for the bits of a batch of its styles
            return self._decode_in_style(features, mean, std, images, False)[:1]
        styled = adain(features.expand(len(mean), -1, -1, -1), mean, std, self.alpha)
        larger = (side, side) if side else size
        decoded = _load_cached_codec(self.codec, images.device).decode(styled, larger, images.shape[1])
        if larger == size:
            return decoded
        return F.interpolate(decoded, size, mode="bilinear", antialias=True).clamp(0, 1)

    def _batch_size(self, images: Tensor) -> int:
        """How many of the images are encoded or decoded at a time."""
        pixels = self.transfer_size**2 or images.shape[2] * images.shape[3]
        return max(1, MAX_PIXELS // pixels)


def single_styles(encoded: Encoded, n: int) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return mean and standard deviation (n, C) of the first n images, and their indices (eq. 6-7 of CCST)."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for indices, features in encoded:
        parts.append((*channel_mean_std(features), indices))  # eq. 6
        if sum(len(images) for *_, images in parts) >= n:
            break
    if not parts:
        return None
    mean, std, images = (torch.cat(column)[:n] for column in zip(*parts, strict=True))  # eq. 7, J = n
    return mean, std, images


def _is_small(features: Tensor, channels: Sequence[int]) -> bool:
    """Return whether PyTorch may decode one feature map with another algorithm, and other bits, than several."""
    first, second, third, fourth = channels
    smallest = min(fourth, third, 4 * second, 16 * first) * features.shape[2] * features.shape[3]  # entries of a layer
    return features.device.type == "cpu" and smallest <= MAX_NATIVE_ENTRIES


@lru_cache(maxsize=4)
def _load_cached_codec(name: str, device: torch.device) -> StyleCodec:
    return load_codec(name).to(device)
