"""Synthetic lymph nodes of five hospitals, drawn on the spot: to learn the toolkit and for tests, never for results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from medfed.core.bounds import PositiveInt
from medfed.datasets.base import Card
from medfed.datasets.camelyon17 import TABLE, Camelyon17
from medfed.phantoms.synthesis.histology import VERSION, make_histology_phantom
from medfed.phantoms.synthetic import ProgressCount, SyntheticDataset


@dataclass(frozen=True)
class Camelyon17Phantom(SyntheticDataset, Camelyon17):
    """The synthetic twin of `Camelyon17`; it is made where `root` is missing, or was made with other values.

    Args:
        patches_per_site: half of them with tumour, dealt to the patients in turn.
        patients_per_site: 1 to 20, each with one slide.
        phantom_seed: which patients are drawn.
    """

    patches_per_site: PositiveInt = 240
    patients_per_site: Annotated[int, Field(ge=1, le=20)] = 6
    phantom_seed: int = 0

    card: ClassVar[Card] = replace(
        Camelyon17.card,
        title="Camelyon17 phantom, five hospitals",
        description="Drawn lymph nodes, with and without tumour, stained and scanned by five simulated hospitals, in "
        "the layout of Camelyon17-WILDS. There is no patient in it, and scores on it say nothing about one.",
        licence="That of medfed; no patient's data.",
        citation="None; for the layout see the dataset camelyon17.",
        how_to_get="`python -m medfed.data fetch camelyon17_phantom` makes it in data/camelyon17_phantom; training "
        "makes it where it is missing.",
        layout="ROOT/metadata.csv with ROOT/patches/patient_PPP_node_N/patch_patient_PPP_node_N_x_X_y_Y.png",
    )
    published_counts = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patches_per_site < 2 * self.patients_per_site:
            raise ValueError(
                "patches_per_site must be at least 2 * patients_per_site, got "
                f"{self.patches_per_site} and {self.patients_per_site}"
            )

    @property
    def generator_settings(self) -> dict[str, object]:
        return {
            "generator": "medfed histology phantom", "version": VERSION, "seed": self.phantom_seed,
            "patches_per_site": self.patches_per_site, "patients_per_site": self.patients_per_site, "severity": 1.0,
        }  # fmt: skip

    @property
    def expected_names(self) -> frozenset[str]:
        return frozenset({TABLE, "patches"})

    def write_collection(self, folder: Path, count: ProgressCount | None) -> None:
        make_histology_phantom(folder, self.patches_per_site, self.patients_per_site, self.phantom_seed, count)
