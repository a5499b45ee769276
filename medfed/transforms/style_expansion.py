"""A set of images in several styles each, drawn when they are needed (CCST's offline expansion, made lazily)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from medfed.core.batch import Batch

MAX_CACHED_BYTES = 2 * 2**30  # of styled images that stay in memory; the others are drawn again, to the same numbers

Restyle = Callable[[Tensor, Sequence[int]], Tensor]


class Samples(Protocol):
    """Images and labels by number; `n_patients` is of how many people they are."""

    @property
    def n_patients(self) -> int: ...

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int]) -> Batch: ...


class StyleExpansion:
    """Samples of which each is there K times: as it is, or in another style; the label stays.

    Styled images are kept as float16 (steps of at most 0.0005 in [0, 1]), and rounded so even where they are not kept.

    Args:
        samples: the originals, images (B, C, H, W) in [0, 1].
        choices: for each of them K style numbers; None is the original itself.
        restyle: an image (1, C, H, W) and m style numbers to (m, C, H, W). It gets all styles of an image at once, so
            that it encodes the image once, and always in the same company: its bits do not depend on the batch.
        kept_bytes: how much of the styled images stays in memory.
    """

    def __init__(
        self,
        samples: Samples,
        choices: Sequence[Sequence[int | None]],
        restyle: Restyle,
        kept_bytes: int = MAX_CACHED_BYTES,
    ) -> None:
        if len(choices) != len(samples) or len({len(row) for row in choices}) != 1:
            raise ValueError(f"need as many choices for each of the {len(samples)} samples")
        self.samples, self.choices, self.restyle, self.kept_bytes = samples, choices, restyle, kept_bytes
        self.n_styles = len(choices[0])
        self._kept: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.samples) * self.n_styles

    @property
    def n_patients(self) -> int:
        return self.samples.n_patients

    def batch(self, indices: Sequence[int]) -> Batch:
        """Sample i in its j-th style is number i * K + j."""
        places = [divmod(index, self.n_styles) for index in indices]
        originals = self.samples.batch([number for number, _ in places])
        images = [
            image if self.choices[number][slot] is None else self.restyled_image(number, slot, image)
            for image, (number, slot) in zip(originals.image, places, strict=True)
        ]
        return Batch(torch.stack(images), originals.label, originals.views)

    def restyled_image(self, number: int, slot: int, image: Tensor) -> Tensor:
        """Sample `number`, whose original (C, H, W) is given, in the style of that slot."""
        chosen = [style for style in self.choices[number] if style is not None]
        if number not in self._kept:
            drawn = self.restyle(image[None], chosen).to("cpu", torch.float16)
            if (len(self._kept) + 1) * drawn.numel() * 2 > self.kept_bytes:
                return self._of(drawn, number, slot)
            self._kept[number] = drawn
        return self._of(self._kept[number], number, slot)

    def _of(self, drawn: Tensor, number: int, slot: int) -> Tensor:
        before = sum(style is not None for style in self.choices[number][:slot])
        return drawn[before].float()
