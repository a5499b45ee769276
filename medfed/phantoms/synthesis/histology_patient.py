"""Random parameters of one synthetic patient: appearance of the lymph node and of the tumour."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class HistologyPatient:
    """Parameters of one synthetic patient and the patient's only slide. Lengths are in micrometres."""

    lymphocyte_um: float  # radius of a lymphocyte's nucleus
    lymphocyte_spacing_um: float  # distance between neighbouring lymphocytes where they are densest
    nucleus_um: float  # mean radius of a tumour nucleus
    pleomorphism: float  # standard deviation of the logarithm of the tumour nucleus radius
    cell_spacing_um: float  # distance between neighbouring tumour cells
    chromatin: float  # stain inside a tumour nucleus: 0.3 vesicular to 0.9 dark
    nucleoli: float  # additional stain of the nucleoli in tumour nuclei
    nests: float  # fraction of the tumour area covered by tumour cells; the rest is stroma
    infiltration: float  # fraction of the stroma that is filled with lymphocytes
    cytoplasm: float  # eosin of the cytoplasm of tumour cells
    glands: float  # fraction of the tumour cells that surround a lumen
    collagen: float  # eosin of collagen fibres
    thickness: float  # thickness of the section relative to the typical one
    haematoxylin: float  # strength of haematoxylin on this slide relative to the site's typical value
    eosin: float  # strength of eosin on this slide relative to the site's typical value

    @classmethod
    def sample(cls, rng: np.random.Generator, stain_spread: float = 0.1) -> HistologyPatient:
        """Draw a patient; `stain_spread` is the deviation of the logarithm of the stains' strengths."""
        grade = rng.random()
        nucleus_um = 4.3 + 2.0 * grade + rng.normal(0, 0.2)
        return cls(
            lymphocyte_um=rng.uniform(2.9, 3.4),
            lymphocyte_spacing_um=rng.uniform(6.8, 8.0),
            nucleus_um=nucleus_um,
            pleomorphism=0.08 + 0.14 * grade,
            cell_spacing_um=nucleus_um * rng.uniform(2.15, 2.8),
            chromatin=float(np.clip(rng.normal(0.66, 0.12), 0.42, 0.95)),
            nucleoli=rng.uniform(0.15, 0.4) + 0.3 * grade,
            nests=rng.uniform(0.62, 0.95),
            infiltration=rng.uniform(0.1, 0.6),
            cytoplasm=rng.uniform(0.26, 0.58),
            glands=rng.uniform(0, 0.5) * (1 - grade),
            collagen=rng.uniform(0.50, 0.80),
            thickness=rng.uniform(0.9, 1.1),
            haematoxylin=float(np.exp(rng.normal(0, stain_spread))),
            eosin=float(np.exp(rng.normal(0, stain_spread))),
        )
