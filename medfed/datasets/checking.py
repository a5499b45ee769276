"""Reading a whole dataset to find everything that is wrong with it, before a federation stumbles over it."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from monai.data import MetaTensor

from medfed.core.errors import UserError
from medfed.datasets import reading, volumes
from medfed.datasets.base import Case, Dataset, Progress

MAX_HASHED_CASES = 20_000  # cases whose files a run compares by their content; reading more would take too long
SAMPLED_VOXELS = 100_000  # of each volume, when its intensities are looked at


@dataclass(frozen=True)
class CaseFacts:
    """What one readable case is like.

    shape: (H, W, D). lowest, highest: of the intensities. labels: values in the mask's file, or the number of its
    class. missing: structures that the mask does not show. sha256: of the image's voxels as the file holds them.
    """

    patient: str
    subject: str
    shape: tuple[int, ...]
    spacing_mm: tuple[float, ...] | None
    lowest: float
    highest: float
    labels: tuple[int, ...]
    missing: tuple[str, ...]
    notices: tuple[str, ...]
    sha256: str


@dataclass(frozen=True)
class SiteFacts:
    """One site: how many cases lie there, and the facts of those that could be read."""

    name: str
    n_cases: int
    cases: tuple[CaseFacts, ...]


@dataclass(frozen=True)
class DatasetReport:
    """A dataset as it is. `problems` want mending before training; `warnings` want a look."""

    root: str
    is_phantom: bool
    sites: tuple[SiteFacts, ...]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def check_dataset(dataset: Dataset, allow_duplicates: bool = False, progress: Progress | None = None) -> DatasetReport:
    """Read every case of a dataset.

    Args:
        dataset: whose root exists.
        allow_duplicates: make warnings of images that are there more than once, as `data.allow_duplicates` does.
        progress: wraps the list of cases, to draw a bar.

    Raises:
        UserError: if the sites cannot be told; whatever is wrong with single files is in the report.
    """
    names = dataset.site_names()
    surveys = {site: dataset.cases_and_problems(site) for site in names}
    problems = [problem for _, found in surveys.values() for problem in found]
    cases = [case for found, _ in surveys.values() for case in found]
    facts: dict[str, list[CaseFacts]] = {site: [] for site in names}
    for case in progress(cases) if progress else cases:
        found, wrong = examine(dataset, case)
        facts[case.site] += [found] if found else []
        problems += wrong
    sites = tuple(SiteFacts(site, len(surveys[site][0]), tuple(facts[site])) for site in names)
    twice, allow_duplicates = find_duplicates(cases), allow_duplicates or dataset.allow_duplicates
    problems += _kinds(dataset) + ([] if allow_duplicates else twice)
    site_warnings = [remark for site in names for remark in dataset.site_warnings(site)]
    warnings = [*site_warnings, *_counts(dataset, sites), *_oddities(sites), *(twice if allow_duplicates else [])]
    return DatasetReport(dataset.root, dataset.is_phantom, sites, tuple(problems), tuple(warnings))


def examine(dataset: Dataset, case: Case) -> tuple[CaseFacts | None, list[str]]:
    """The facts of one case, or what is wrong with its image, its mask, or the two together."""
    notices: list[str] = []
    problems: list[str] = []
    found = []
    for read in (dataset.read_image, *([dataset.read_mask] if case.mask else [])):
        try:
            found.append(read(case, notices))
        except UserError as error:
            problems.append(str(error))
    if problems:
        return None, problems
    if case.mask is None:
        return _facts(case, found[0], (case.label,), (), notices), []
    image, mask = found
    try:
        reading.check_pair(case.image, image, case.mask, mask, dataset.ignore_mask_geometry)
    except UserError as error:
        return None, [str(error)]
    missing = dataset.missing(mask)
    if not reading.is_2d_image_file(case.image):
        notices += _far_values(image.numpy())
    return _facts(case, image, tuple(mask.meta["label_values"]), tuple(missing), notices), []


def _facts(case: Case, image: MetaTensor, labels: tuple, missing: tuple[str, ...], notices: list[str]) -> CaseFacts:
    return CaseFacts(
        case.patient, case.subject, tuple(image.shape[1:]), reading.spacing_mm(case.image, image), float(image.min()),
        float(image.max()), labels, missing, tuple(notices), file_sha256(case.image),
    )  # fmt: skip


def file_sha256(path: Path) -> str:
    """SHA-256 of an image's file; of an MHD's, the file with its voxels."""
    whole = hashlib.sha256()
    with open(volumes.data_file(path), "rb") as file:
        while chunk := file.read(1 << 20):  # hashlib.file_digest needs Python 3.11
            whole.update(chunk)
    return whole.hexdigest()


def find_duplicates(cases: Iterable[Case]) -> list[str]:
    """A sentence for every image that is there more than once, in one site or two: a test would see training data."""
    by_size: dict[int, list[Case]] = defaultdict(list)
    for case in cases:
        try:
            by_size[volumes.data_file(case.image).stat().st_size].append(case)
        except (OSError, UserError):  # said elsewhere, by whoever reads it
            continue
    same: dict[str, list[Path]] = defaultdict(list)
    for group in by_size.values():
        for case in group if len(group) > 1 else ():
            same[file_sha256(case.image)].append(case.image)
    return [
        f"{' and '.join(map(str, paths))}: are the same image (SHA-256 {found[:12]}); expected every image once, so "
        "remove all but one"
        for found, paths in same.items()
        if len(paths) > 1
    ]


def _far_values(image: np.ndarray) -> list[str]:
    """Whether the lowest or highest value is farther from all others than these are from each other."""
    flat = image.reshape(-1)
    values = np.unique(np.append(flat[:: max(1, flat.size // SAMPLED_VOXELS)], (flat.min(), flat.max())))
    if len(values) < 4:
        return []
    notices = []
    if values[1] - values[0] > values[-1] - values[1]:
        notices.append("lowest value far from all others (padding?)")
    if values[-1] - values[-2] > values[-2] - values[0]:
        notices.append("highest value far from all others")
    return notices


def _kinds(dataset: Dataset) -> list[str]:
    """What asking for the intensity range says."""
    try:
        _ = dataset.intensity_range
    except UserError as error:
        return [str(error)]
    return []


def _counts(dataset: Dataset, sites: tuple[SiteFacts, ...]) -> list[str]:
    if dataset.is_phantom:
        return []
    found = {site.name: site.n_cases for site in sites}
    expected = {site: n for site, n in dataset.published_counts.items() if not dataset.sites or site in dataset.sites}
    return [
        f"{site}: {found.get(site, 0)} cases, but {n} were published"
        for site, n in expected.items()
        if found.get(site, 0) != n
    ]


def _oddities(sites: tuple[SiteFacts, ...]) -> list[str]:
    """The notices of all cases and their empty structures, counted."""
    lines = []
    for site in sites:
        said = [(f"no {name} in the mask", case) for case in site.cases for name in case.missing]
        said += [(notice, case) for case in site.cases for notice in case.notices]
        for text, n in Counter(text for text, _ in said).items():
            first = next(case.patient for other, case in said if other == text)
            lines.append(f"{site.name}: {text}: {n} of {site.n_cases} cases, first {first}")
        lines += _mixed_marks(site)
    return lines


def _mixed_marks(site: SiteFacts) -> list[str]:
    """Masks of one structure each, where some mark it with another number: perhaps it is another structure."""
    marks = Counter(case.labels for case in site.cases if len(case.labels) == 2)
    if len(marks) < 2 or any(len(case.labels) > 2 for case in site.cases):
        return []
    rarest = min(marks, key=lambda labels: marks[labels])
    first = next(case.patient for case in site.cases if case.labels == rarest)
    others = "; ".join(f"{reading.few(labels)} in {n}" for labels, n in marks.most_common())
    return [f"{site.name}: its masks have different values ({others}), first {first}; look whether they mean the same"]
