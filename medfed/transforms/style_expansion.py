"""Training samples in several styles each, computed when they are needed (CCST's expansion of the training set)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from medfed.core.batch import Batch

MAX_CACHE_BYTES = 2 * 2**30  # memory for restyled images; further ones are computed again, with equal values

Restyle = Callable[[Tensor, Sequence[int]], Tensor]


class Samples(Protocol):
    """Interface of a set of labelled images that can be read in batches."""

    @property
    def n_patients(self) -> int:
        """Number of patients to whom the images belong."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return the samples with the given numbers as one batch of images with their labels.

        Args:
            indices: the numbers of the samples, from 0.
        """
        ...


class StyleExpansion:
    """Training samples that contain each original sample K times, in its own or in other styles, with the same label.

    Sample i in its j-th style has the index i * K + j. Restyled images are rounded to float16 (steps of at most 0.0005
    in [0, 1]). They are rounded even if they are not kept in memory, so their values never depend on the memory.

    Args:
        samples: N original samples, images (B, C, H, W) in [0, 1].
        choices: for each original sample, K style numbers; None stands for the original image.
        restyle: function from an image (1, C, H, W) and m style numbers to (m, C, H, W). It gets all styles of an image
            in one call, so that it encodes the image once and the values do not depend on the batch.
        max_cache_bytes: memory for restyled images, in bytes; further images are restyled again when needed.

    Raises:
        ValueError: if `choices` has another length than `samples`, or its rows differ in length.
    """

    def __init__(
        self,
        samples: Samples,
        choices: Sequence[Sequence[int | None]],
        restyle: Restyle,
        max_cache_bytes: int = MAX_CACHE_BYTES,
    ) -> None:
        if len(choices) != len(samples) or len({len(row) for row in choices}) != 1:
            raise ValueError(f"choices must hold one row per sample ({len(samples)}), all of the same length")
        self.samples, self.choices, self.restyle, self.max_cache_bytes = samples, choices, restyle, max_cache_bytes
        self.n_styles = len(choices[0])
        self._cache: dict[int, Tensor] = {}

    def __len__(self) -> int:
        """Return the number of samples, N * K."""
        return len(self.samples) * self.n_styles

    @property
    def n_patients(self) -> int:
        """Number of patients to whom the images belong.

        A restyled image belongs to the patient of the original image.
        """
        return self.samples.n_patients

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return a batch of samples, each an original image in one of its K styles, with the label of the original.

        Args:
            indices: the numbers of the B samples. Original sample i in its j-th style has the number i * K + j, where i
                and j start at 0.

        Returns:
            A batch with the images (B, C, H, W) in their styles. The labels and the `views` (other versions of the
            original images, by name) are taken unchanged from the original samples.
        """
        places = [divmod(index, self.n_styles) for index in indices]
        originals = self.samples.batch([number for number, _ in places])
        images = [
            image if self.choices[number][slot] is None else self.restyled_image(number, slot, image)
            for image, (number, slot) in zip(originals.image, places, strict=True)
        ]
        return Batch(torch.stack(images), originals.label, originals.views)

    def restyled_image(self, number: int, slot: int, image: Tensor) -> Tensor:
        """Return one original image in one of its K styles. The restyled image is taken from the cache if it is there.

        Args:
            number: number of the original sample, from 0.
            slot: which of the sample's K styles to use, from 0. The entry `choices[number][slot]` must be the number of
                a style, not None.
            image: (C, H, W), the original image, in [0, 1].

        Returns:
            (C, H, W) float32 on the CPU, with values that were rounded to float16.
        """
        styles = [style for style in self.choices[number] if style is not None]
        if number not in self._cache:
            restyled = self.restyle(image[None], styles).to("cpu", torch.float16)
            if (len(self._cache) + 1) * restyled.numel() * 2 > self.max_cache_bytes:
                return self._select(restyled, number, slot)
            self._cache[number] = restyled
        return self._select(self._cache[number], number, slot)

    def _select(self, restyled: Tensor, number: int, slot: int) -> Tensor:
        """Select the image of a slot from the restyled versions (m, C, H, W), which leave out the original."""
        before = sum(style is not None for style in self.choices[number][:slot])
        return restyled[before].float()
