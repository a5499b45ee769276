"""The fingerprint of the images of the sites that train: the numbers from which `rules` plans a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, median

from medfed.core.errors import UserError
from medfed.datasets.base import Dataset, Progress
from medfed.datasets.case_measures import CaseMeasures, measure_case
from medfed.datasets.splits import sample_cases, split

MAX_READ = 30  # cases of a site that are read first; further ones hardly change a median


@dataclass(frozen=True)
class SiteFingerprint:
    """Numbers of images of one site that trains."""

    name: str
    n_images: int  # of all parts of the split; a volume is one image
    n_patients: int
    n_training_images: int
    n_slices: float = 1.0  # mean number in these images; estimated if not all of them were read

    @property
    def n_training(self) -> int:
        """Number of slices for training."""
        return round(self.n_training_images * self.n_slices)


@dataclass(frozen=True)
class Structure:
    """How large a structure is in the masks of the training patients."""

    name: str
    foreground: float  # mean fraction of the pixels that belong to it, over the slices that show it
    width: float  # median of 2 * area / perimeter per side: the width of a line, 0.39 of the diameter of a disc


@dataclass(frozen=True)
class Fingerprint:
    """Properties of the images of all sites that train.

    Height, width and depth of a volume are along the axes right, anterior and superior, if its file stores directions.
    """

    sites: tuple[SiteFingerprint, ...]
    height: int  # median size of the slices in pixels
    width: int
    depth: int  # median number of slices of an image; 1 for 2-D images
    spacing_mm: tuple[float, float, float] | None  # median along height, width and depth; None if no file stores it
    channels: int
    intensities: tuple[float, float]  # medians of the percentiles 0.5 and 99.5 of the stored intensities of each image
    structures: tuple[Structure, ...]  # empty for classification
    classes: tuple[tuple[str, int], ...]  # images of each class, in the order of its number; empty for segmentation


def take_fingerprint(
    dataset: Dataset, sites: Sequence[str], seed: int, progress: Progress | None = None
) -> Fingerprint:
    """Read training patients of the sites that train, and no other file.

    While no mask that was read shows one of the structures, further cases are read; UserError if none shows it.
    """
    found = {site: dataset.cases(site) for site in sorted(sites)}
    training = {
        site: split(cases, seed, dataset.validation_ratio, dataset.test_ratio).train for site, cases in found.items()
    }
    ratios = {site: MAX_READ / max(MAX_READ, len(cases)) for site, cases in training.items()}
    first = [case for site, cases in training.items() for case in sample_cases(cases, seed, ratios[site])]
    already = set(first)
    rest = [case for cases in training.values() for case in cases if case not in already]
    measures: dict[str, list[CaseMeasures]] = {site: [] for site in found}
    shown = set[int]()
    for number, case in enumerate(chain(progress(first) if progress else first, rest)):
        if number >= len(first) and len(shown) == len(dataset.structures):
            break
        try:
            volume = dataset.load(case) if case.masks else None
            image = volume.image if volume else dataset.read_image(case, [])
        except UserError as error:
            advice = "python -m medfed.data check, with the same folder and settings, lists every problem of the images"
            raise UserError(f"{error}; {advice}") from error
        measures[case.site].append(measure_case(case, image, volume.mask if volume else None))
        shown |= {index for index, structure in enumerate(measures[case.site][-1].structures) if structure.cover}
    if missing := [name for index, name in enumerate(dataset.structures) if index not in shown]:
        raise UserError(
            f"{dataset.root}: no mask that is used for training shows {' or '.join(missing)} (sites that train: "
            f"{', '.join(found)}); expected every structure in at least one of these masks; run python -m medfed.data "
            "check, and correct the masks, the data settings that read them, or the choice of the unseen site"
        )
    every = [case for of_site in measures.values() for case in of_site]
    height, width, depth = (round(median(values)) for values in zip(*(_oriented(case, case.shape) for case in every)))
    spacings = [_oriented(case, case.spacing_mm) for case in every if case.spacing_mm is not None]
    along = [float(median(values)) for values in zip(*spacings)]
    low, _, high = (float(median(values)) for values in zip(*(case.percentiles for case in every)))
    n_slices = {
        site: fmean([_oriented(case, case.shape)[2] for case in of_site] or [0]) for site, of_site in measures.items()
    }
    structures = []
    for index, name in enumerate(dataset.structures):
        foreground = [value for case in every for value in case.structures[index].slice_covers]
        widths = [value for case in every for value in case.structures[index].slice_widths]
        structures.append(Structure(name, fmean(foreground), median(widths)))
    labels = Counter(case.label for cases in found.values() for case in cases)
    return Fingerprint(
        tuple(
            SiteFingerprint(
                site, len(cases), len({case.patient for case in cases}), len(training[site]), n_slices[site]
            )
            for site, cases in found.items()
        ),
        height,
        width,
        depth,
        (along[0], along[1], along[2]) if spacings else None,
        dataset.channels,
        (low, high),
        tuple(structures),
        tuple((name, labels[number]) for number, name in enumerate(dataset.classes)),
    )


def _oriented(case: CaseMeasures, values: Sequence[float]) -> list[float]:
    """Values along the stored axes of an image in the order right, anterior, superior; as stored if not oriented."""
    axis = {direction: number for number, direction in enumerate(case.orientation)}
    return [values[axis[a] if a in axis else axis[b]] for a, b in ("RL", "AP", "SI")] if axis else list(values)
