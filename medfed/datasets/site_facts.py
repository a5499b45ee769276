"""What a site reports about its images in the survey: numbers over many cases, so that none is of a single patient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from medfed.datasets.case import Case
from medfed.datasets.case_measures import CaseMeasures
from medfed.federation.survey import (
    COVER,
    IMAGES,
    INTENSITIES,
    LIMITS,
    MEASURED,
    MIN_QUANTILE_PATIENTS,
    PATIENTS,
    POSITIONS,
    QUANTILES,
    SIZES,
    SPACINGS,
    SPREADS,
    large_groups,
)

MAX_MEASURED = 1000  # cases of a site that are measured; further ones hardly change a quantile
SIGNIFICANT_DIGITS = 4  # of the numbers that leave a site


def site_facts(
    cases: Sequence[Case], measured: Mapping[Case, CaseMeasures], n_classes: int, min_patients: int
) -> dict[str, float]:
    """Return the facts with which a site describes its images in a survey, which leave the site.

    - The numbers of patients, of images (files), and of those that were measured.
    - The quantiles of sizes, voxel sizes and intensities over the images.
    - `K.images`: how many images belong to class K, or how many measured images show structure K.
    - `K.cover`, `K.position_A`, `K.spread_A`: median share of the image that structure K covers, median and standard
      deviation of its centre along axis A.

    Numbers of fewer patients than `min_patients`, and for quantiles `MIN_QUANTILE_PATIENTS`, are left out.
    """
    facts: dict[str, float] = {
        PATIENTS: len({case.patient for case in cases}),
        IMAGES: len(cases),
        MEASURED: len(measured),
    }
    numbers_of = {case: _numbers(case_measures) for case, case_measures in measured.items()}
    for name in (*SIZES, *SPACINGS, *INTENSITIES):
        values = {case: numbers[name] for case, numbers in numbers_of.items() if name in numbers}
        if len({case.patient for case in values}) >= max(MIN_QUANTILE_PATIENTS, min_patients):
            quantiles = np.quantile(list(values.values()), list(QUANTILES.values()))
            if name in INTENSITIES:
                quantiles = np.where(np.abs(quantiles) < LIMITS[name][0], 0.0, quantiles)  # errors of rounding
            facts |= {f"{name}.{word}": _rounded(number) for word, number in zip(QUANTILES, quantiles, strict=True)}
    by_class = {f"{label}": [case for case in cases if case.label == label] for label in range(n_classes)}
    facts |= {f"{label}.{IMAGES}": n for label, n in _sizes_of_groups(by_class, min_patients).items()}
    n_structures = max((len(case_measures.structures) for case_measures in measured.values()), default=0)
    return facts | dict(
        chain.from_iterable(_structure_facts(label, measured, min_patients).items() for label in range(n_structures))
    )


def _numbers(measures: CaseMeasures) -> dict[str, float]:
    """Return size, voxel size and intensities of a case by the names in `medfed.federation.survey`."""
    numbers: dict[str, float] = dict(zip((*SIZES, *INTENSITIES), (*measures.shape, *measures.percentiles), strict=True))
    return numbers | dict(zip(SPACINGS, measures.spacing_mm or (), strict=False))


def _structure_facts(label: int, measured: Mapping[Case, CaseMeasures], min_patients: int) -> dict[str, float]:
    """Return the facts about structure number `label`, as `site_facts` lists them."""
    structures = {case: case_measures.structures[label] for case, case_measures in measured.items()}
    shown = {case: structure for case, structure in structures.items() if structure.centre}
    groups = {"shown": list(shown), "empty": [case for case in measured if case not in shown]}
    sizes = _sizes_of_groups(groups, min_patients)
    facts: dict[str, float] = {f"{label}.{IMAGES}": sizes["shown"]} if len(sizes) == len(groups) else {}
    if len({case.patient for case in shown}) >= max(MIN_QUANTILE_PATIENTS, min_patients):
        n_axes = min(len(structure.centre) for structure in shown.values())
        facts[f"{label}.{COVER}"] = _rounded(np.median([structure.cover for structure in shown.values()]))
        for axis, (position, spread) in enumerate(zip(POSITIONS[:n_axes], SPREADS, strict=False)):
            centres = [structure.centre[axis] for structure in shown.values()]
            facts[f"{label}.{position}"] = _rounded(np.median(centres))
            facts[f"{label}.{spread}"] = _rounded(float(np.std(centres, ddof=1)))
    return facts


def _sizes_of_groups(groups: Mapping[str, Sequence[Case]], min_patients: int) -> dict[str, int]:
    """Return the sizes of the groups that have enough patients; `large_groups` decides."""
    allowed = large_groups({name: [case.patient for case in group] for name, group in groups.items()}, min_patients)
    return {name: len(groups[name]) for name in allowed}


def _rounded(number: float) -> float:
    """The number rounded to `SIGNIFICANT_DIGITS` significant digits."""
    return float(f"{number:.{SIGNIFICANT_DIGITS}g}")
