"""Synthetic prostate MRI of six hospitals, drawn on the spot: to learn the toolkit and for tests, never for results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from medfed.core.bounds import PositiveInt
from medfed.datasets.base import Card
from medfed.datasets.prostate import SITES, Prostate
from medfed.phantoms.synthesis.prostate import VERSION, make_prostate_phantom
from medfed.phantoms.synthetic import ProgressCount, SyntheticDataset


@dataclass(frozen=True)
class ProstatePhantom(SyntheticDataset, Prostate):
    """The synthetic twin of `Prostate`; it is made where `root` is missing, or was made with other values.

    Args:
        cases_per_site: at most; a site never has more than were published.
        matrix: rows and columns of a slice, at least 32.
        phantom_seed: which patients are drawn.
    """

    cases_per_site: PositiveInt = 8
    matrix: Annotated[int, Field(ge=32)] = 128
    phantom_seed: int = 0

    card: ClassVar[Card] = replace(
        Prostate.card,
        title="Prostate phantom, six hospitals",
        description="Drawn anatomy on simulated scanners of six hospitals, in the layout of the real collection. "
        "There is no patient in it, and scores on it say nothing about one.",
        licence="That of medfed; no patient's data.",
        citation="None; for the layout see the dataset prostate.",
        how_to_get="`python -m medfed.data fetch prostate_phantom` makes it in data/prostate_phantom; training makes "
        "it where it is missing.",
    )
    published_counts = {}

    @property
    def generator_settings(self) -> dict[str, object]:
        return {
            "version": VERSION, "seed": self.phantom_seed, "matrix": self.matrix, "cases_per_site": self.cases_per_site,
            "severity": 1.0,
        }  # fmt: skip

    @property
    def expected_names(self) -> frozenset[str]:
        return frozenset(SITES)

    def write_collection(self, folder: Path, count: ProgressCount | None) -> None:
        make_prostate_phantom(folder, self.cases_per_site, self.matrix, self.phantom_seed, count)
