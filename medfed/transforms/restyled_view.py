"""Samples that come with a second picture of each scene, in another style."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from medfed.core.batch import Batch
from medfed.transforms.style_expansion import MAX_CACHED_BYTES, Samples, StyleExpansion


class RestyledView:
    """Samples whose batches carry a restyled picture of each image in `views`.

    It is drawn when a batch first wants it, and kept as float16 (`StyleExpansion`): its bits depend on no batch.

    Args:
        samples: the originals, images (B, C, H, W) in [0, 1].
        name: of the view.
        restyle: an image (1, C, H, W) to the same.
        kept_bytes: how much of the restyled images stays in memory.
    """

    def __init__(
        self, samples: Samples, name: str, restyle: Callable[[Tensor], Tensor], kept_bytes: int = MAX_CACHED_BYTES
    ) -> None:
        self.samples, self.name = samples, name
        self._restyled = StyleExpansion(samples, [[0]] * len(samples), lambda image, _: restyle(image), kept_bytes)

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def n_patients(self) -> int:
        return self.samples.n_patients

    def batch(self, indices: Sequence[int]) -> Batch:
        originals = self.samples.batch(indices)
        pairs = zip(indices, originals.image, strict=True)
        view = torch.stack([self._restyled.restyled_image(index, 0, image) for index, image in pairs])
        return Batch(originals.image, originals.label, {**originals.views, self.name: view})
