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
    """Training samples whose batches contain each image and a restyled version of the image, in another style.

    The restyled images are an entry of `Batch.views`. An image is restyled when a batch first needs it, and stored as
    float16, so its values do not depend on the batch.

    Args:
        samples: the original samples, images (B, C, H, W) in [0, 1].
        name: name of the view in `Batch.views`.
        restyle: function from an image (1, C, H, W) to its restyled version of the same shape.
        store: the store for restyled images. Images for which it has no room are restyled again when they are needed.
    """

    def __init__(self, samples: Samples, name: str, restyle: Callable[[Tensor], Tensor], store: ImageStore) -> None:
        self.samples, self.name = samples, name
        choices = torch.zeros(len(samples), 1, dtype=torch.int32)
        self._restyled = StyleExpansion(samples, choices, lambda image, styles, n_styles: restyle(image), store)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.samples)

    @property
    def n_patients(self) -> int:
        """Number of patients to whom the images belong."""
        return self.samples.n_patients

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return a batch of samples, each with its image, its label and its restyled image.

        Args:
            indices: the numbers of the B samples, from 0.

        Returns:
            A batch with the original images and labels. Its `views` contain the restyled images, (B, C, H, W) in [0,
            1], under the name that was given to the constructor.
        """
        originals = self.samples.batch(indices)
        pairs = zip(indices, originals.image, strict=True)
        view = torch.stack([self._restyled.versions(index, [0], image)[0] for index, image in pairs])
        return replace(originals, views={**originals.views, self.name: view})
