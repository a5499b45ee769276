"""Training samples in several styles: each as a sample of its own (CCST), or as a second view of the image (FISC)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from medfed.core.batch import Batch
from medfed.federation.local_round import Samples
from medfed.transforms.image_store import ImageStore

ORIGINAL = -1  # in the choices: the original image instead of a style

Restyle = Callable[[Tensor, Sequence[int], int], Tensor]


class StyleExpansion:
    """Training samples that contain each original sample K times, in its own or in other styles (CCST).

    Sample i in its j-th style has the index i * K + j. Restyled images are rounded to float16 (steps of at most 0.0005
    in [0, 1]) even if the store has no room for them, so their values never depend on the store. When a batch first
    needs an image in a style, the image is restyled in all its styles for which the store has room, so that the image
    is encoded only once.

    Args:
        samples: N original samples, whose batches have images (B, C, H, W) in [0, 1].
        choices: (N, K) integers, the style numbers of each original sample. ORIGINAL (-1) means the original image.
        restyle: function that returns one image in m styles, (m, C, H, W). Its arguments are the image (1, C, H, W),
            the m style numbers, and in how many styles the image occurs in `choices` (without ORIGINAL). The function
            gets one image at a time, because the bits of a result can depend on the other images of a batch. For
            example, the small codec encodes one image of 32 x 32 pixels differently from several (by up to 5e-7).
        store: the store for restyled images. Images for which it has no room are restyled each time.
    """

    def __init__(self, samples: Samples, choices: Tensor, restyle: Restyle, store: ImageStore) -> None:
        if choices.dim() != 2 or len(choices) != len(samples):
            raise ValueError(f"choices must be ({len(samples)}, K), one row per sample, got {tuple(choices.shape)}")
        self.samples, self.choices, self.restyle, self.store = samples, choices.to(torch.int32), restyle, store
        n_restyled = (choices != ORIGINAL).sum(dim=1)
        self._first_position = n_restyled.cumsum(dim=0) - n_restyled  # (N,), of each sample's images in the store

    def __len__(self) -> int:
        return self.choices.numel()

    @property
    def n_styles(self) -> int:
        return self.choices.shape[1]

    @property
    def n_patients(self) -> int:
        return self.samples.n_patients

    def batch(self, indices: Sequence[int]) -> Batch:
        """Copy i of image n has the index n * n_styles + i; (B, C, H, W)."""
        numbers, slots = zip(*(divmod(index, self.n_styles) for index in indices), strict=True)
        originals = self.samples.batch(numbers)
        slots_of: dict[int, list[int]] = {}  # so that an image that occurs several times is encoded once
        for number, slot in zip(numbers, slots, strict=True):
            slots_of.setdefault(number, []).append(slot)
        images = {number: originals.image[numbers.index(number)] for number in slots_of}
        versions = {number: self.versions(number, slots_of[number], image) for number, image in images.items()}
        batch = [versions[number][slot] for number, slot in zip(numbers, slots, strict=True)]
        return replace(originals, image=torch.stack(batch))

    def versions(self, number: int, slots: Sequence[int], image: Tensor) -> dict[int, Tensor]:
        """Return one original image, (C, H, W), in the styles of some columns (`slots`) of `choices`, by column."""
        styles = self.choices[number].tolist()
        restyled = [slot for slot, style in enumerate(styles) if style != ORIGINAL]
        positions = {slot: int(self._first_position[number]) + place for place, slot in enumerate(restyled)}
        versions = {slot: image for slot in slots if styles[slot] == ORIGINAL}
        wanted = [slot for slot in dict.fromkeys(slots) if slot in positions]
        stored = {slot: self.store.read(positions[slot], image) for slot in wanted}
        if any(entry is None for entry in stored.values()):
            others = [slot for slot in restyled if slot not in stored and self.store.has_room(positions[slot], image)]
            stored |= {slot: self.store.read(positions[slot], image) for slot in others}
            missing = sorted(slot for slot, entry in stored.items() if entry is None)
            results = self.restyle(image[None], [styles[slot] for slot in missing], len(restyled))
            for slot, result in zip(missing, results.to("cpu", torch.float16), strict=True):
                self.store.write(positions[slot], image, result)
                stored[slot] = result
        return versions | {slot: entry.float() for slot in wanted if (entry := stored[slot]) is not None}


class RestyledView:
    """Training samples whose batches contain, as an entry of `Batch.views`, a restyled version of each image (FISC).

    `restyle` maps an image (1, C, H, W) in [0, 1] to its restyled version. An image is restyled when a batch first
    needs it, and stored as float16, so its values do not depend on the batch.
    """

    def __init__(self, samples: Samples, name: str, restyle: Callable[[Tensor], Tensor], store: ImageStore) -> None:
        self.samples, self.name = samples, name
        choices = torch.zeros(len(samples), 1, dtype=torch.int32)
        self._restyled = StyleExpansion(samples, choices, lambda image, styles, n_styles: restyle(image), store)

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def n_patients(self) -> int:
        return self.samples.n_patients

    def batch(self, indices: Sequence[int]) -> Batch:
        """The batch with the restyled images as its view `name`."""
        originals = self.samples.batch(indices)
        pairs = zip(indices, originals.image, strict=True)
        view = torch.stack([self._restyled.versions(index, [0], image)[0] for index, image in pairs])
        return replace(originals, views={**originals.views, self.name: view})
