"""The fingerprint of the images of the sites that train: the numbers from which `rules` plans a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import torch
from torch import Tensor

from medfed.core.errors import UserError
from medfed.datasets.base import Dataset, Progress
from medfed.datasets.case import Case
from medfed.datasets.check_masks import lost_problem
from medfed.datasets.folder import Folder
from medfed.datasets.measures import sampled_percentiles
from medfed.datasets.splits import sample_cases, split
from medfed.images import reading, two_dimensional
from medfed.images.mask_colours import LOST

MAX_READ = 30  # cases of a site that are read first; further ones hardly change a median
PERCENTILES = (0.5, 99.5)


@dataclass(frozen=True)
class SiteFingerprint:
    """Numbers of images of one site that trains.

    Args:
        n_images, n_patients: of all parts of the split; a volume is one image.
        n_training: slices for training; a 2-D image is one slice. Of volumes that were not all read, it is estimated
            from the mean number of slices.
    """

    name: str
    n_images: int
    n_patients: int
    n_training: int


@dataclass(frozen=True)
class Structure:
    """How large a structure is in the masks of the training patients.

    Args:
        foreground: mean fraction of the pixels that belong to the structure, over the slices that show it.
        width: median over these slices of 2 * area / perimeter, as a fraction of the image's side. It is the width of a
            line, and 0.39 of the diameter of a disc.
    """

    name: str
    foreground: float
    width: float


@dataclass(frozen=True)
class Fingerprint:
    """Properties of the images of all sites that train.

    Args:
        height, width: median size of the slices in pixels.
        depth: median number of slices of an image; 1 for 2-D images.
        spacing_mm: median size of a voxel along height, width and depth; None if no file stores it.
        intensities: medians of the percentiles 0.5 and 99.5 of the stored intensities of each image.
        structures: empty for classification.
        classes: number of images of each class, in the order of the class numbers; empty for segmentation.
    """

    sites: tuple[SiteFingerprint, ...]
    height: int
    width: int
    depth: int
    spacing_mm: tuple[float, float, float] | None
    channels: int
    intensities: tuple[float, float]
    structures: tuple[Structure, ...]
    classes: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _CaseFacts:
    """Properties of one case that was read; foreground and width of each structure, by slice that shows it.

    `is_lost` says whether the mask lost its foreground (`mask_colours.LOST`).
    """

    shape: tuple[int, ...]
    spacing_mm: tuple[float, ...] | None
    intensities: tuple[float, ...]
    foreground: tuple[list[float], ...] = ()
    width: tuple[list[float], ...] = ()
    is_lost: bool = False


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

    While no mask that was read shows one of the structures, further cases are read. UserError if none shows it, if
    every mask of a site lost its foreground, or if a file cannot be used.
    """
    found = {site: dataset.cases(site) for site in sorted(sites)}
    training = {
        site: split(cases, seed, dataset.validation_ratio, dataset.test_ratio).train for site, cases in found.items()
    }
    chosen = [case for cases in training.values() for case in _first(cases, seed)]
    facts: dict[str, list[_CaseFacts]] = {site: [] for site in found}
    for case in progress(chosen) if progress else chosen:
        facts[case.site].append(_read(dataset, case))
    for site, of_site in facts.items():
        if problem := lost_problem(site, sum(case_facts.is_lost for case_facts in of_site), len(of_site)):
            raise problem
    _read_until_shown(dataset, [case for cases in training.values() for case in cases], set(chosen), facts)
    every = [case_facts for of_site in facts.values() for case_facts in of_site]
    height, width, depth = (round(median(case_facts.shape[axis] for case_facts in every)) for axis in range(3))
    spacings = [case_facts.spacing_mm for case_facts in every if case_facts.spacing_mm is not None]
    low, high = (float(median(case_facts.intensities[end] for case_facts in every)) for end in (0, 1))
    return Fingerprint(
        tuple(_of_site(site, cases, len(training[site]), facts[site]) for site, cases in found.items()),
        height,
        width,
        depth,
        (_median_of(spacings, 0), _median_of(spacings, 1), _median_of(spacings, 2)) if spacings else None,
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


def _of_site(name: str, cases: Sequence[Case], n_training: int, facts: Sequence[_CaseFacts]) -> SiteFingerprint:
    n_slices = fmean(case_facts.shape[2] for case_facts in facts) if facts else 0.0
    n_patients = len({case.patient for case in cases})
    return SiteFingerprint(name, len(cases), n_patients, round(n_training * n_slices))


def _read(dataset: Dataset, case: Case) -> _CaseFacts:
    """Measure one case: size, voxel size, intensities and structures."""
    if not case.masks:
        image, masks, is_lost = dataset.read_image(case, []), None, False
        spacing_mm = reading.spacing_mm(case.image, image)
    else:
        volume = dataset.load(case)
        image, masks, spacing_mm = volume.image, volume.mask.as_tensor(), volume.spacing_mm
        is_lost = LOST in volume.notices
    sizes = [_sizes(mask) for mask in masks] if masks is not None else []
    return _CaseFacts(
        tuple(image.shape[1:]),
        spacing_mm,
        sampled_percentiles(image, PERCENTILES),
        tuple(foreground for foreground, _ in sizes),
        tuple(width for _, width in sizes),
        is_lost,
    )


def _sizes(mask: Tensor) -> tuple[list[float], list[float]]:
    """Foreground fraction and relative width of a structure, (H, W, D), for each slice that shows it."""
    slices = torch.nn.functional.pad(mask.movedim(-1, 0).bool(), (1, 1, 1, 1))
    area = slices.sum((1, 2)).double()
    edges = (slices[:, 1:] != slices[:, :-1]).sum((1, 2)) + (slices[:, :, 1:] != slices[:, :, :-1]).sum((1, 2))
    shown, (height, width) = area > 0, mask.shape[:2]
    widths = 2 * area[shown] / edges[shown] / (height * width) ** 0.5
    return (area[shown] / (height * width)).tolist(), widths.tolist()


def _read_until_shown(
    dataset: Dataset, training: Sequence[Case], chosen: Collection[Case], facts: Mapping[str, list[_CaseFacts]]
) -> None:
    """Read further training cases, and add their facts, until the masks that were read show every structure."""
    n_structures = len(dataset.structures)
    shown = {index for of_site in facts.values() for case_facts in of_site for index in _shown(case_facts)}
    for case in training:
        if len(shown) == n_structures:
            return
        if case not in chosen:
            facts[case.site].append(_read(dataset, case))
            shown |= _shown(facts[case.site][-1])
    if len(shown) < n_structures:
        missing = [name for index, name in enumerate(dataset.structures) if index not in shown]
        raise UserError(
            f"{dataset.root}: no mask that is used for training shows {' or '.join(missing)} (sites that train: "
            f"{', '.join(facts)}); expected every structure in at least one of these masks; run python -m medfed.data "
            "check, and correct the masks, the data settings that read them, or the choice of the unseen site"
        )


def _shown(facts: _CaseFacts) -> set[int]:
    """Places of the structures that the mask of a case shows."""
    return {index for index, foreground in enumerate(facts.foreground) if foreground}


def _structure(name: str, index: int, facts: Sequence[_CaseFacts]) -> Structure:
    """The mean share of the image that a structure covers, and its median width."""
    foreground = [value for case_facts in facts for value in case_facts.foreground[index]]
    widths = [value for case_facts in facts for value in case_facts.width[index]]
    return Structure(name, fmean(foreground), median(widths))


def _median_of(spacings: Sequence[tuple[float, ...]], axis: int) -> float:
    return float(median(spacing[axis] for spacing in spacings))
