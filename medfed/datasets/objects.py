"""Base of the published collections of objects in domains, with which the papers compare methods."""

from __future__ import annotations

from dataclasses import dataclass

from medfed.core.bounds import ImageSize
from medfed.datasets.base import Dataset, Standardise


@dataclass(frozen=True)
class _Objects(Dataset):
    """Colour images of objects, found as `ROOT/DOMAIN/CLASS/NAME.jpg`; the domains are the sites. Grey images are
    repeated in three channels.

    Args:
        image_size: side length in pixels, at least 1, of the images that the network receives; images are resized to
            it.
    """

    image_size: ImageSize = 224
    standardise: Standardise = "imagenet"

    image_patterns = ("{site}/{class}/{case}.*",)
    channels = 3
    intensity_range = (0.0, 255.0)

    def site_name(self, folder: str) -> str | None:
        return folder if folder in self.published_counts else None
