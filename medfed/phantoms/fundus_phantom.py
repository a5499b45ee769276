"""Synthetic fundus photographs from four simulated cameras, for learning the toolkit and for tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from medfed.core.bounds import PositiveInt
from medfed.datasets.base import Card, Progress
from medfed.datasets.collections.fundus import Fundus
from medfed.phantoms.synthesis import fundus_sites
from medfed.phantoms.synthesis.fundus import VERSION, write_photographs
from medfed.phantoms.synthesis.synthetic import SyntheticDataset


@dataclass(frozen=True)
class FundusPhantom(SyntheticDataset, Fundus):
    """Phantom of the dataset `Fundus`: synthetic fundus photographs in the same file layout.

    Args:
        images_per_site: maximum number of images of each site, at least 1. A site never has more images than the
            published dataset.
        size: number of rows and of columns of an image, in pixels, at least 32.
        phantom_seed: seed of the random anatomy. Another seed gives other eyes.
    """

    images_per_site: PositiveInt = 24
    size: Annotated[int, Field(ge=32)] = 192
    phantom_seed: int = 0

    card: ClassVar[Card] = replace(
        Fundus.card,
        title="Fundus phantom, four cameras",
        description="Synthetic fundus photographs from four simulated cameras, in the file layout of the real dataset. "
        "The images contain no patient data. Scores on them say nothing about patients.",
        licence="The licence of medfed. The images contain no patient data.",
        citation="None. For the file layout see the dataset fundus.",
        how_to_get="`python -m medfed.data fetch fundus_phantom` generates the images in data/fundus_phantom. Training "
        "generates them if they are missing, or have other settings.",
    )
    published_counts = {}
    generator = {
        "what": "synthetic photographs from simulated fundus cameras; no patient data",
        "generator": "medfed fundus phantom",
        "version": VERSION,
    }
    generator_sizes = ("size", "images_per_site")
    expected_names = frozenset(site.folder for site in fundus_sites.SITES.values())

    def write_collection(self, folder: Path, progress: Progress) -> None:
        write_photographs(folder, self.images_per_site, self.size, self.phantom_seed, progress)
