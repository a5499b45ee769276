"""Numbers that describe images as they are stored: of one case, and of all cases of a site for the survey."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import nibabel as nib
import numpy as np
from monai.data import MetaTensor
from numpy.typing import NDArray

from medfed.datasets.case import Case
from medfed.federation.survey import (
    COVER,
    IMAGES,
    INTENSITIES,
    INTENSITY_LIMITS,
    MEASURED,
    MIN_QUANTILE_PATIENTS,
    ORIENTATION,
    PATIENTS,
    POSITIONS,
    QUANTILES,
    SIZES,
    SPACINGS,
    SPREADS,
    large_groups,
)
from medfed.images import reading

PERCENTILES = (0.5, 50.0, 99.5)
MAX_SAMPLED_VOXELS = 100_000  # voxels of an image from which the percentiles are computed
MAX_MEASURED = 1000  # cases of a site that are measured; further ones hardly change a quantile
SIGNIFICANT_DIGITS = 4  # of the numbers that leave a site


@dataclass(frozen=True)
class CaseMeasures:
    """Numbers that describe one case.

    Args:
        values: sizes in voxels, voxel sizes in mm (not of 2-D image files), and the percentiles 0.5, 50 and 99.5 of the
            intensities, by the names in `medfed.federation.survey`.
        centres: for each structure, its centre along each axis as a fraction of the image, in [0, 1]; empty if the mask
            does not show the structure. The axes of a volume point to the right, to the front and upwards; those of a
            2-D image are its rows and columns.
        covers: for each structure, the share of the image that it covers, in [0, 1].
        orientation: directions of the stored axes of a volume, such as "LPS"; "" for a 2-D image.
    """

    values: Mapping[str, float]
    centres: tuple[tuple[float, ...], ...]
    covers: tuple[float, ...]
    orientation: str


def sampled_percentiles(image: MetaTensor, percentiles: Sequence[float]) -> tuple[float, ...]:
    """Return percentiles, in [0, 100], of the intensities of an image, from at most 200,000 of its voxels."""
    voxels = image.numpy().ravel()
    sampled = np.percentile(voxels[:: max(1, len(voxels) // MAX_SAMPLED_VOXELS)], percentiles)
    return tuple(float(value) for value in sampled)


def measure_case(case: Case, image: MetaTensor, mask: MetaTensor | None) -> CaseMeasures:
    """Measure a case by its image (C, H, W, D), as read from the file, and its mask (S, H, W, D) of 0 and 1."""
    spacing_mm = reading.spacing_mm(case.image, image)
    values = dict(zip(SIZES, map(float, image.shape[1:]), strict=True))
    values |= zip(SPACINGS, spacing_mm or (), strict=False)
    values |= zip(INTENSITIES, sampled_percentiles(image, PERCENTILES), strict=True)
    codes = nib.orientations.aff2axcodes(image.affine.numpy()) if spacing_mm else ()
    orientation = "" if None in codes else "".join(codes)
    centres = () if mask is None else tuple(_centre(channel.numpy(), orientation) for channel in mask)
    covers = () if mask is None else tuple(float(channel.count_nonzero() / channel.numel()) for channel in mask)
    return CaseMeasures(values, centres, covers, orientation)


def _centre(mask: NDArray[np.uint8], orientation: str) -> tuple[float, ...]:
    """Return the centre of a mask (H, W, D) along the right, anterior and superior axis; rows and columns if 2-D."""
    if not mask.any():
        return ()
    centre = {}
    for axis, direction in enumerate(orientation or "RA"):
        profile = mask.sum(axis=tuple({0, 1, 2} - {axis}), dtype=np.int64)
        position = float(((np.arange(len(profile)) + 0.5) * profile).sum() / profile.sum() / len(profile))
        centre["RAS".index(direction) if direction in "RAS" else "LPI".index(direction)] = (
            position if direction in "RAS" else 1 - position
        )
    return tuple(centre[axis] for axis in sorted(centre))


def site_facts(
    cases: Sequence[Case], measured: Mapping[Case, CaseMeasures], n_classes: int, min_patients: int
) -> dict[str, float]:
    """Return the facts with which a site describes its images in a survey.

    - The numbers of patients, of images (files), and of those that were measured.
    - The quantiles of sizes, voxel sizes and intensities over the images. Voxel sizes are left out if the files of
      fewer patients have them.
    - `K.images`: how many images belong to class K, or how many measured images show structure K.
    - `K.cover`: median share of the image that structure K covers, over the images that show it.
    - `K.position_A` and `K.spread_A`: median and standard deviation of the centre of structure K along axis A.
    - `orientation.CODE`: how many images have this orientation.

    Args:
        cases: the cases of the site that train or validate.
        measured: the measures of those cases that were read; not of all of them if they are many.
        n_classes: 0 for segmentation.
        min_patients: a number of images of fewer patients than this is left out. A quantile is also left out if it is
            of fewer than `MIN_QUANTILE_PATIENTS` patients.
    """
    facts: dict[str, float] = {
        PATIENTS: len({case.patient for case in cases}),
        IMAGES: len(cases),
        MEASURED: len(measured),
    }
    for name in (*SIZES, *SPACINGS, *INTENSITIES):
        values = {case: measures.values[name] for case, measures in measured.items() if name in measures.values}
        if len({case.patient for case in values}) >= max(MIN_QUANTILE_PATIENTS, min_patients):
            numbers = np.quantile(list(values.values()), list(QUANTILES.values()))
            if name in INTENSITIES:
                numbers = np.where(np.abs(numbers) < INTENSITY_LIMITS[0], 0.0, numbers)  # rounding errors of the file
            facts |= {f"{name}.{word}": _rounded(number) for word, number in zip(QUANTILES, numbers, strict=True)}
    by_class = {f"{label}": [case for case in cases if case.label == label] for label in range(n_classes)}
    facts |= {f"{label}.{IMAGES}": n for label, n in _sizes_of_groups(by_class, min_patients).items()}
    codes = sorted({measures.orientation for measures in measured.values()} - {""})
    by_code = {code: [case for case in measured if measured[case].orientation == code] for code in codes}
    facts |= {f"{ORIENTATION}.{code}": n for code, n in _sizes_of_groups(by_code, min_patients).items()}
    n_structures = max((len(measures.centres) for measures in measured.values()), default=0)
    return facts | dict(
        chain.from_iterable(_structure_facts(label, measured, min_patients).items() for label in range(n_structures))
    )


def _structure_facts(label: int, measured: Mapping[Case, CaseMeasures], min_patients: int) -> dict[str, float]:
    """Return the facts about structure number `label`, as `site_facts` lists them."""
    shown = {case: measures.centres[label] for case, measures in measured.items() if measures.centres[label]}
    groups = {"shown": list(shown), "empty": [case for case in measured if case not in shown]}
    sizes = _sizes_of_groups(groups, min_patients)
    facts: dict[str, float] = {f"{label}.{IMAGES}": sizes["shown"]} if len(sizes) == len(groups) else {}
    if len({case.patient for case in shown}) >= max(MIN_QUANTILE_PATIENTS, min_patients):
        n_axes = min(map(len, shown.values()))
        facts[f"{label}.{COVER}"] = _rounded(np.median([measured[case].covers[label] for case in shown]))
        for axis, (position, spread) in enumerate(zip(POSITIONS[:n_axes], SPREADS, strict=False)):
            centres = [centre[axis] for centre in shown.values()]
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
