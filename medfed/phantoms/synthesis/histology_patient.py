"""One patient as numbers: what her lymph node and her tumour look like, drawn before any patch of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Patient:
    """Everything that is particular to one patient and her one slide. Lengths in micrometres."""

    lymphocyte_um: float        # radius of a lymphocyte's nucleus
    lymphocyte_way_um: float    # from one to the next where they lie densest
    nucleus_um: float           # mean radius of a tumour nucleus
    pleomorphism: float         # spread of the logarithm of that radius
    cell_way_um: float          # from one tumour cell to the next
    chromatin: float            # stain inside a tumour nucleus: 0.3 vesicular to 0.9 dark
    nucleoli: float             # how strong they stand out
    nests: float                # share of tumour that is cells, the rest is stroma
    infiltration: float         # share of that stroma full of lymphocytes
    cytoplasm: float            # eosin of tumour cells
    glands: float               # share of tumour cells around a lumen
    collagen: float             # eosin of fibres
    thickness: float            # of the section, against the usual
    haematoxylin: float         # strength of the stains on this slide, against its laboratory
    eosin: float

    @classmethod
    def sample(cls, rng: np.random.Generator, stain_spread: float = 0.1) -> Patient:
        """A random patient; a grade runs from small alike nuclei (0) to large wild ones (1)."""
        grade = rng.random()
        nucleus_um = 4.3 + 2.0 * grade + rng.normal(0, 0.2)
        return cls(
            lymphocyte_um=rng.uniform(2.9, 3.4), lymphocyte_way_um=rng.uniform(6.8, 8.0), nucleus_um=nucleus_um,
            pleomorphism=0.08 + 0.14 * grade, cell_way_um=nucleus_um * rng.uniform(2.15, 2.8),
            chromatin=float(np.clip(rng.normal(0.66, 0.12), 0.42, 0.95)), nucleoli=rng.uniform(0.15, 0.4) + 0.3 * grade,
            nests=rng.uniform(0.62, 0.95), infiltration=rng.uniform(0.1, 0.6), cytoplasm=rng.uniform(0.26, 0.58),
            glands=rng.uniform(0, 0.5) * (1 - grade), collagen=rng.uniform(0.50, 0.80), thickness=rng.uniform(0.9, 1.1),
            haematoxylin=float(np.exp(rng.normal(0, stain_spread))), eosin=float(np.exp(rng.normal(0, stain_spread))))
