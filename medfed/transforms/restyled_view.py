"""Training samples whose batches contain a second version of each image, in another style (FISC)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from medfed.core.batch import Batch
from medfed.transforms.image_store import ImageStore
from medfed.transforms.style_expansion import Samples, StyleExpansion


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
