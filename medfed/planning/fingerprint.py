"""The fingerprint of the images of the sites that train: the numbers from which `rules` plans a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean, median

from medfed.core.errors import UserError
from medfed.datasets.base import Dataset, Progress
from medfed.datasets.case import Case
from medfed.datasets.case_measures import CaseMeasures, measure_case
from medfed.datasets.collections.folder import Folder
from medfed.datasets.splits import sample_cases, split
from medfed.images import reading, two_dimensional

MAX_READ = 30  # cases of a site that are read first; further ones hardly change a median


@dataclass(frozen=True)
class SiteFingerprint:
    """Numbers of images of one site that trains."""

    name: str
    n_images: int  # of all parts of the split; a volume is one image
    n_patients: int
    n_training: int  # slices; if not all volumes were read, estimated from the mean number of slices


@dataclass(frozen=True)
class Structure:
    """How large a structure is in the masks of the training patients."""

    name: str
    foreground: float  # mean fraction of the pixels that belong to it, over the slices that show it
    width: float  # median of 2 * area / perimeter per side: the width of a line, 0.39 of the diameter of a disc


@dataclass(frozen=True)
class Fingerprint:
    """Properties of the images of all sites that train."""

    sites: tuple[SiteFingerprint, ...]
    height: int  # median size of the slices in pixels
    width: int
    depth: int  # median number of slices of an image; 1 for 2-D images
    spacing_mm: tuple[float, float, float] | None  # median along height, width and depth; None if no file stores it
    channels: int
    intensities: tuple[float, float]  # medians of the percentiles 0.5 and 99.5 of the stored intensities of each image
    structures: tuple[Structure, ...]  # empty for classification
    classes: tuple[tuple[str, int], ...]  # images of each class, in the order of its number; empty for segmentation


def with_channels_of(dataset: Dataset, cases: Iterable[Case]) -> Dataset:
    """Return a dataset with the number of channels of its training cases: next to colour images, grey ones get three.

    Datasets other than `folder`, and volumes, are returned unchanged.
    """
    if not isinstance(dataset, Folder):
        return dataset
    paths = [case.image for case in cases if reading.is_2d_image_file(case.image)]
    if not paths:
        return dataset
    return replace(dataset, image_channels=two_dimensional.needed_channels(paths))


def take_fingerprint(
    dataset: Dataset, sites: Sequence[str], seed: int, progress: Progress | None = None
) -> Fingerprint:
    """Read the training patients of the sites that train; no file of another site, for validation or for the test.

    While no mask that was read shows one of the structures, further cases are read. UserError if none shows it, or if
    a file cannot be used.
    """
    found = {site: dataset.cases(site) for site in sorted(sites)}
    training = {
        site: split(cases, seed, dataset.validation_ratio, dataset.test_ratio).train for site, cases in found.items()
    }
    first = [case for cases in training.values() for case in _first(cases, seed)]
    already = set(first)
    rest = [case for cases in training.values() for case in cases if case not in already]
    measures: dict[str, list[CaseMeasures]] = {site: [] for site in found}
    notices: dict[str, list[str]] = {site: [] for site in found}
    shown = set[int]()
    for number, case in enumerate(chain(progress(first) if progress else first, rest)):
        if number >= len(first) and len(shown) == len(dataset.structures):
            break
        measures[case.site].append(_read(dataset, case, notices[case.site]))
        shown |= {index for index, structure in enumerate(measures[case.site][-1].structures) if structure.cover}
    if missing := [name for index, name in enumerate(dataset.structures) if index not in shown]:
        raise UserError(
            f"{dataset.root}: no mask that is used for training shows {' or '.join(missing)} (sites that train: "
            f"{', '.join(found)}); expected every structure in at least one of these masks; run python -m medfed.data "
            "check, and correct the masks, the data settings that read them, or the choice of the unseen site"
        )
    every = [case for of_site in measures.values() for case in of_site]
    height, width, depth = (round(median(case.shape[axis] for case in every)) for axis in range(3))
    spacings = [case.spacing_mm for case in every if case.spacing_mm is not None]
    along = [float(median(values)) for values in zip(*spacings)]
    low, _, high = (float(median(values)) for values in zip(*(case.percentiles for case in every)))
    return Fingerprint(
        tuple(_of_site(site, cases, len(training[site]), measures[site]) for site, cases in found.items()),
        height,
        width,
        depth,
        (along[0], along[1], along[2]) if spacings else None,
        dataset.channels,
        (low, high),
        tuple(_structure(name, index, every) for index, name in enumerate(dataset.structures)),
        tuple(
            (name, sum(case.label == number for cases in found.values() for case in cases))
            for number, name in enumerate(dataset.classes)
        ),
    )


def _first(cases: Sequence[Case], seed: int) -> list[Case]:
    """At most `MAX_READ` cases of a site, chosen by the seed."""
    return list(cases) if len(cases) <= MAX_READ else sample_cases(cases, seed, MAX_READ / len(cases))


def _of_site(name: str, cases: Sequence[Case], n_training: int, measures: Sequence[CaseMeasures]) -> SiteFingerprint:
    n_slices = fmean(case.shape[2] for case in measures) if measures else 0.0
    n_patients = len({case.patient for case in cases})
    return SiteFingerprint(name, len(cases), n_patients, round(n_training * n_slices))


def _read(dataset: Dataset, case: Case, notices: list[str]) -> CaseMeasures:
    """Measure one case, and append what was unusual to `notices`."""
    if not case.masks:
        return measure_case(case, dataset.read_image(case, notices), None)
    volume = dataset.load(case)
    notices += volume.notices
    return measure_case(case, volume.image, volume.mask)


def _structure(name: str, index: int, measures: Sequence[CaseMeasures]) -> Structure:
    """The mean share of the image that a structure covers, and its median width."""
    foreground = [value for case in measures for value in case.structures[index].slice_covers]
    widths = [value for case in measures for value in case.structures[index].slice_widths]
    return Structure(name, fmean(foreground), median(widths))
