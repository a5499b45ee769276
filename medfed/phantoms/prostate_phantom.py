"""Synthetic prostate MRI of six simulated hospitals, for learning the toolkit and for tests.

The images are generated on this machine. Scores on them are not scientific results.
"""

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
    """Phantom of the dataset `Prostate`: synthetic T2-weighted MRI volumes in the same file layout.

    The images are generated if the folder `root` is missing or was created with other settings.

    Args:
        cases_per_site: maximum number of cases of each site, at least 1. A site never has more cases than the
            published dataset.
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
        "Training generates them if they are missing.",
    )
    published_counts = {}

    @property
    def generator_settings(self) -> dict[str, object]:
        """Return the settings with which the synthetic images are generated, as plain JSON values by name.

        The generator stores these settings with the images in the file `PHANTOM.json`. If the returned settings differ
        from those in the file, `ensure_available` generates the images again.
        """
        return {
            "version": VERSION,
            "seed": self.phantom_seed,
            "matrix": self.matrix,
            "cases_per_site": self.cases_per_site,
            "severity": 1.0,
        }

    @property
    def expected_names(self) -> frozenset[str]:
        """Return the names of the folders that the dataset's folder contains, one for each site.

        The file `PHANTOM.json`, which contains the generator's settings, is not part of the set.
        """
        return frozenset(SITES)

    def write_collection(self, folder: Path, count: ProgressCount | None) -> None:
        """Generate the MRI volumes and masks of all sites and write them to a new folder.

        Args:
            folder: path of the folder to create; it must not exist, or must be empty.
            count: function that is called after each volume with (number of finished volumes, total number); None for
                no progress.
        """
        make_prostate_phantom(folder, self.cases_per_site, self.matrix, self.phantom_seed, count)
