"""Synthetic fundus photographs of four cameras, drawn on the spot: to learn the toolkit, never for results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from medfed.core.bounds import PositiveInt
from medfed.datasets.base import Card
from medfed.datasets.fundus import Fundus
from medfed.phantoms.synthesis import fundus_sites
from medfed.phantoms.synthesis.fundus import VERSION, make_fundus_phantom
from medfed.phantoms.synthetic import ProgressCount, SyntheticDataset


@dataclass(frozen=True)
class FundusPhantom(SyntheticDataset, Fundus):
    """The synthetic twin of `Fundus`; it is made where `root` is missing, or was made with other values.

    Args:
        images_per_site: at most; a site never has more than were published.
        size: rows and columns of a picture, at least 32.
        phantom_seed: which eyes are drawn.
    """

    images_per_site: PositiveInt = 24
    size: Annotated[int, Field(ge=32)] = 192
    phantom_seed: int = 0

    card: ClassVar[Card] = replace(
        Fundus.card,
        title="Fundus phantom, four cameras",
        description="Drawn eyes before four simulated cameras, in the layout of the real collection. There is no "
        "patient in it, and scores on it say nothing about one.",
        licence="That of medfed; no patient's data.",
        citation="None; for the layout see the dataset fundus.",
        how_to_get="`python -m medfed.data fetch fundus_phantom` makes it in data/fundus_phantom; training makes it "
        "where it is missing.",
    )
    published_counts = {}

    @property
    def generator_settings(self) -> dict[str, object]:
        return {
            "generator": "medfed fundus phantom", "version": VERSION, "seed": self.phantom_seed, "size": self.size,
            "images_per_site": self.images_per_site, "severity": 1.0,
        }  # fmt: skip

    @property
    def expected_names(self) -> frozenset[str]:
        return frozenset(site.folder for site in fundus_sites.SITES.values())

    def write_collection(self, folder: Path, count: ProgressCount | None) -> None:
        make_fundus_phantom(folder, self.images_per_site, self.size, self.phantom_seed, count)
