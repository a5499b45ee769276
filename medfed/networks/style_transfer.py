"""How a method gives images another style: redrawn by a codec, or by matching the moments of their intensities."""

from __future__ import annotations

from collections.abc import Iterator
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
from medfed.functional.style import adain, moment_match
from medfed.networks.adain import StyleCodec, load_codec

Transfer = Literal["codec", "moments"]
BUNDLED_CODEC = "small"  # ships with medfed
MAX_PIXELS = 32 * 96 * 96  # that a codec works on, so that large images need no more memory than many small ones
BLANK_STD = 0.02  # in each channel, of intensities in [0, 1]: below it an image is blank, and its style says nothing


def drop_blank_images(images: Tensor) -> Tensor:
    """Those of the images (B, C, H, W), in [0, 1], whose style says anything."""
    return images[images.flatten(2).std(dim=2, correction=0).amax(dim=1) >= BLANK_STD]


@dataclass(frozen=True)
class StyleTransfer:
    """The settings that CCST and FISC have in common, under the names that a config gives them.

    Args:
        transfer: "codec" redraws with AdaIN; "moments" matches mean and deviation of the intensities themselves, which
            cannot move an edge and needs no codec (ours, for segmentation).
        codec: "small" (ships with medfed), or what `python -m medfed.codec train` wrote.
        alpha: strength of the style in [0, 1].
        transfer_size: side in pixels at which images are redrawn, before they are brought back to their own; 0 leaves
            them as they are.
    """

    transfer: Transfer
    codec: str
    alpha: Ratio
    transfer_size: NonNegativeInt

    def __post_init__(self) -> None:
        bounds.check(self)

    @property
    def files(self) -> tuple[str, ...]:
        """The codec's file; none for medfed's own codec, and none if nothing is redrawn."""
        return (self.codec,) if self.transfer == "codec" and self.codec != BUNDLED_CODEC else ()

    def check(self, image_size: int, channels: int) -> None:
        """UserError if the codec cannot work on such images."""
        if self.transfer == "moments":
            return
        least, side = load_codec(self.codec).min_side, self.transfer_size or image_size
        if side < least:
            key = "method.transfer_size" if self.transfer_size else "data.image_size"
            raise UserError(f"{key} is {side}, but the codec needs at least {least} pixels a side; choose more")
        if channels not in (1, 3):
            raise UserError(
                f"images have {channels} channels, but the codec takes 1 or 3; set method.transfer: moments"
            )

    def features(self, images: Tensor) -> Iterator[Tensor]:
        """What carries the style of images (B, C, H, W) in [0, 1]: maps (b, D, h, w), few images after few.

        Maps of VGG fill 8 MB for an image of 512 x 512 pixels, and the way to them 266 MB, so take what is wanted from
        one part before the next is asked for.
        """
        if self.transfer == "moments":
            yield images
            return
        for part in images.split(self._at_once(images)):
            yield _load_cached_codec(self.codec, images.device).encode(self._resized(part))

    def restyle(self, images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Images (B, C, H, W) in the styles (B, D); one image (1, C, H, W), encoded once, in m styles (m, D).

        Raises:
            ValueError: if there are several images and not as many styles.
        """
        if len(images) not in (1, len(mean)):
            raise ValueError(f"{len(images)} images need as many styles, got {len(mean)}")
        mean, std = mean.to(images), std.to(images)
        if self.transfer == "moments":
            return moment_match(images.expand(len(mean), -1, -1, -1), mean, std, self.alpha)
        features = self.features(images)
        parts = features if len(images) > 1 else repeat(next(features))
        styles = zip(mean.split(self._at_once(images)), std.split(self._at_once(images)), strict=True)
        return torch.cat([self._drawn(part, *style, images) for style, part in zip(styles, parts)])

    def reconstruction_error(self, images: Tensor) -> Tensor | None:
        """(1,): mean absolute difference that encoding and decoding alone make; None where nothing is redrawn."""
        if self.transfer == "moments":
            return None
        plain, width = replace(self, alpha=0.0), _load_cached_codec(self.codec, images.device).channels
        again = torch.cat([plain.restyle(one[None], *images.new_zeros(2, 1, width)) for one in images])
        return (again - images).abs().mean().cpu().reshape(1)

    def _drawn(self, features: Tensor, mean: Tensor, std: Tensor, images: Tensor) -> Tensor:
        """Features in the styles (b, D), decoded at the size of the transfer and brought back to that of the images."""
        size, side = tuple(images.shape[2:]), self.transfer_size
        styled = adain(features.expand(len(mean), -1, -1, -1), mean, std, self.alpha)
        larger = (side, side) if side else size
        drawn = _load_cached_codec(self.codec, images.device).decode(styled, larger, images.shape[1])
        if larger == size:
            return drawn
        return F.interpolate(drawn, size, mode="bilinear", antialias=True).clamp(0, 1)

    def _at_once(self, images: Tensor) -> int:
        """How many of the images are encoded or decoded at a time."""
        pixels = self.transfer_size**2 or images.shape[2] * images.shape[3]
        return max(1, MAX_PIXELS // pixels)

    def _resized(self, images: Tensor) -> Tensor:
        if not self.transfer_size:
            return images
        size = (self.transfer_size, self.transfer_size)
        return F.interpolate(images, size, mode="bilinear", antialias=True).clamp(0, 1)


@lru_cache(maxsize=4)
def _load_cached_codec(name: str, device: torch.device) -> StyleCodec:
    return load_codec(name).to(device)
