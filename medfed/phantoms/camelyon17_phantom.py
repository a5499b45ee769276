"""Synthetic lymph node patches of five simulated hospitals, for learning the toolkit and for tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from medfed.core.bounds import PositiveInt
from medfed.datasets.base import Card, Progress
from medfed.datasets.collections.camelyon17 import TABLE, Camelyon17
from medfed.phantoms.synthesis.histology import VERSION, write_patches
from medfed.phantoms.synthesis.synthetic import SyntheticDataset


@dataclass(frozen=True)
class Camelyon17Phantom(SyntheticDataset, Camelyon17):
    """Phantom of the dataset `Camelyon17`: synthetic patches of lymph nodes in the same file layout.

    Args:
        patches_per_site: number of patches of each site, at least twice `patients_per_site`. Half of them show tumour.
            The patches are assigned to the site's patients in turn.
        patients_per_site: number of patients of each site, 1 to 20. Each patient has one slide.
        phantom_seed: seed of the random anatomy. Another seed gives other patients.
    """

    patches_per_site: PositiveInt = 240
    patients_per_site: Annotated[int, Field(ge=1, le=20)] = 6
    phantom_seed: int = 0

    card: ClassVar[Card] = replace(
        Camelyon17.card,
        title="Camelyon17 phantom, five hospitals",
        description="Synthetic images of lymph nodes with and without tumour, stained and scanned by five simulated "
        "hospitals, in the file layout of Camelyon17-WILDS. The images contain no patient data. Scores on them say "
        "nothing about patients.",
        licence="The licence of medfed. The images contain no patient data.",
        citation="None. For the file layout see the dataset camelyon17.",
        how_to_get="`python -m medfed.data fetch camelyon17_phantom` generates the images in data/camelyon17_phantom. "
        "Training generates them if they are missing, or have other settings.",
        layout="ROOT/metadata.csv with ROOT/patches/patient_PPP_node_N/patch_patient_PPP_node_N_x_X_y_Y.png",
    )
    published_counts = {}
    generator = {
        "what": "synthetic lymph nodes, stained and scanned by simulated laboratories; no patient data",
        "generator": "medfed histology phantom",
        "version": VERSION,
    }
    generator_sizes = ("patches_per_site", "patients_per_site")
    expected_names = frozenset({TABLE, "patches"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patches_per_site < 2 * self.patients_per_site:
            raise ValueError(
                "patches_per_site must be at least 2 * patients_per_site, got "
                f"{self.patches_per_site} and {self.patients_per_site}"
            )

    def write_collection(self, folder: Path, progress: Progress) -> None:
        write_patches(folder, self.patches_per_site, self.patients_per_site, self.phantom_seed, progress)
