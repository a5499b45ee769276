"""Synthetic prostate MRI of six simulated hospitals, for learning the toolkit and for tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from medfed.core.bounds import PositiveInt
from medfed.datasets.base import Card, Progress
from medfed.datasets.collections.prostate import SITES, Prostate
from medfed.phantoms.synthesis.prostate import VERSION, write_examinations
from medfed.phantoms.synthesis.synthetic import SyntheticDataset


@dataclass(frozen=True)
class ProstatePhantom(SyntheticDataset, Prostate):
    """Phantom of the dataset `Prostate`: synthetic T2-weighted MRI volumes in the same file layout.

    Args:
        cases_per_site: maximum number of cases of each site, at least 1. A site never has more cases than the published
            dataset.
        matrix: number of rows and of columns of a slice, in pixels, at least 32.
        phantom_seed: seed of the random anatomy. Another seed gives other patients.
    """

    cases_per_site: PositiveInt = 8
    matrix: Annotated[int, Field(ge=32)] = 128
    phantom_seed: int = 0

    card: ClassVar[Card] = replace(
        Prostate.card,
        title="Prostate phantom, six hospitals",
        description="Synthetic prostate MRI from the simulated scanners of six hospitals, in the file layout of the "
        "real dataset. The images contain no patient data. Scores on them say nothing about patients.",
        licence="The licence of medfed. The images contain no patient data.",
        citation="None. For the file layout see the dataset prostate.",
        how_to_get="`python -m medfed.data fetch prostate_phantom` generates the images in data/prostate_phantom. "
        "Training generates them if they are missing, or have other settings.",
    )
    published_counts = {}
    generator = {
        "what": "synthetic prostate anatomy on simulated T2 MRI scanners; no patient data",
        "generator": "medfed prostate phantom",
        "version": VERSION,
    }
    generator_sizes = ("matrix", "cases_per_site")
    expected_names = frozenset(SITES)

    def write_collection(self, folder: Path, progress: Progress) -> None:
        write_examinations(folder, self.cases_per_site, self.matrix, self.phantom_seed, progress)
