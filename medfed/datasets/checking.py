"""Read a whole dataset and report everything that is wrong with it, before a training run fails because of it."""

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
from medfed.datasets.base import Dataset, Progress
from medfed.datasets.case import Case

MAX_HASHED_CASES = 20_000  # a run hashes the files of at most this many cases; more would take too long
MAX_SAMPLED_VOXELS = 100_000  # number of voxels per volume in which unusual intensities are searched


@dataclass(frozen=True)
class CaseFacts:
    """Properties of one case whose files can be read.

    Args:
        patient: name of the case, unique within its site.
        subject: identifier of the patient.
        shape: image size (H, W, D) in voxels.
        spacing_mm: voxel size along H, W, D in mm; None if the file does not store it.
        lowest, highest: range of the intensities.
        labels: values in the mask file; for classification, the class number.
        missing: names of the structures that the mask does not contain.
        notices: short descriptions of what was converted or looks unusual.
        sha256: SHA-256 of the image file, hexadecimal (`file_sha256`).
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
    """Properties of one site: the number of its cases, and the properties of each case that can be read."""

    name: str
    n_cases: int
    cases: tuple[CaseFacts, ...]


@dataclass(frozen=True)
class DatasetReport:
    """Result of a dataset check.

    Args:
        root: folder of the dataset.
        is_phantom: whether the images are synthetic.
        sites: facts of every site.
        problems: what must be corrected before training, one sentence each.
        warnings: what may be a mistake and should be looked at, one sentence each.
    """

    root: str
    is_phantom: bool
    sites: tuple[SiteFacts, ...]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def check_dataset(dataset: Dataset, allow_duplicates: bool = False, progress: Progress | None = None) -> DatasetReport:
    """Read every case of a dataset and collect its properties, problems and warnings.

    A case is one image with its mask (segmentation) or its class (classification).

    Args:
        dataset: the dataset to check; its `root` must exist.
        allow_duplicates: True reports images that exist more than once as warnings instead of problems. The field
            `allow_duplicates` of the dataset does the same.
        progress: function that wraps the list of cases to show a progress bar, as tqdm does; None shows none.

    Returns:
        The report. A file that cannot be read is a problem in the report and raises no exception.

    Raises:
        UserError: if the sites of the dataset cannot be determined.
    """
    names = dataset.site_names()
    found_at = {site: dataset.cases_and_problems(site) for site in names}
    problems = [problem for _, site_problems in found_at.values() for problem in site_problems]
    cases = [case for site_cases, _ in found_at.values() for case in site_cases]
    facts: dict[str, list[CaseFacts]] = {site: [] for site in names}
    for case in progress(cases) if progress else cases:
        case_facts, case_problems = check_case(dataset, case)
        facts[case.site] += [case_facts] if case_facts else []
        problems += case_problems
    sites = tuple(SiteFacts(site, len(found_at[site][0]), tuple(facts[site])) for site in names)
    repeated, allow_duplicates = find_duplicates(cases), allow_duplicates or dataset.allow_duplicates
    problems += _intensity_problems(dataset) + ([] if allow_duplicates else repeated)
    warnings = dataset.root_warnings() + [warning for site in names for warning in dataset.site_warnings(site)]
    warnings += dataset.unread(cases, problems)
    warnings += [*_count_warnings(dataset, sites), *_notice_warnings(sites), *(repeated if allow_duplicates else [])]
    return DatasetReport(dataset.root, dataset.is_phantom, sites, tuple(problems), tuple(warnings))


def check_case(dataset: Dataset, case: Case) -> tuple[CaseFacts | None, list[str]]:
    """Read the files of one case, and check its image, its mask, and that the mask fits the image.

    Args:
        dataset: the dataset that reads the files.
        case: a case of this dataset: one image with its mask (segmentation) or its class (classification).

    Returns:
        Two values. The first contains the properties of the case; it is None if there is a problem. The second is the
        list of the problems, one sentence each, which is empty if there are none.
    """
    notices: list[str] = []
    problems: list[str] = []
    arrays = []
    for read in (dataset.read_image, *([dataset.read_mask] if case.mask else [])):
        try:
            arrays.append(read(case, notices))
        except UserError as error:
            problems.append(str(error))
    if problems:
        return None, problems
    if case.mask is None:
        return _facts(case, arrays[0], (case.label,), (), notices), []
    image, mask = arrays
    try:
        mask = dataset.fit_mask(case, image, mask, notices)
    except UserError as error:
        return None, [str(error)]
    missing = dataset.missing_structures(mask)
    if not reading.is_2d_image_file(case.image):
        notices += _outlier_notices(image.numpy())
    return _facts(case, image, tuple(mask.meta["label_values"]), tuple(missing), notices), []


def _facts(case: Case, image: MetaTensor, labels: tuple, missing: tuple[str, ...], notices: list[str]) -> CaseFacts:
    return CaseFacts(
        case.patient, case.subject, tuple(image.shape[1:]), reading.spacing_mm(case.image, image), float(image.min()),
        float(image.max()), labels, missing, tuple(notices), file_sha256(case.image),
    )  # fmt: skip


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of an image file as 64 hexadecimal digits.

    For an MHD file, which contains only a header, this is the SHA-256 of the file that contains the voxels.

    Args:
        path: the image file.
    """
    sha256 = hashlib.sha256()
    with open(volumes.data_file(path), "rb") as file:
        while chunk := file.read(1 << 20):  # hashlib.file_digest needs Python 3.11
            sha256.update(chunk)
    return sha256.hexdigest()


def find_duplicates(cases: Iterable[Case]) -> list[str]:
    """Find images that exist more than once, in one site or in several.

    If an image exists twice, it may be in the training data and in the test data. Only files of equal size are read and
    compared, by their SHA-256.

    Args:
        cases: cases of one or more sites. Their files may be missing or damaged; such files are skipped.

    Returns:
        One sentence per duplicated image, with the paths of its copies.
    """
    by_size: dict[int, list[Case]] = defaultdict(list)
    for case in cases:
        try:
            by_size[volumes.data_file(case.image).stat().st_size].append(case)
        except (OSError, UserError):  # reading the file will report the problem
            continue
    by_sha256: dict[str, list[Path]] = defaultdict(list)
    for group in by_size.values():
        for case in group if len(group) > 1 else ():
            by_sha256[file_sha256(case.image)].append(case.image)
    return [
        f"{' and '.join(map(str, paths))}: these files are the same image (SHA-256 {sha256[:12]}); expected every "
        "image once; remove all but one"
        for sha256, paths in by_sha256.items()
        if len(paths) > 1
    ]


def _outlier_notices(image: np.ndarray) -> list[str]:
    """Describe a lowest or highest value that is farther from all other values than these are from each other."""
    flat = image.reshape(-1)
    values = np.unique(np.append(flat[:: max(1, flat.size // MAX_SAMPLED_VOXELS)], (flat.min(), flat.max())))
    if len(values) < 4:
        return []
    notices = []
    if values[1] - values[0] > values[-1] - values[1]:
        notices.append("the lowest intensity is far below all others (padding?)")
    if values[-1] - values[-2] > values[-2] - values[0]:
        notices.append("the highest intensity is far above all others")
    return notices


def _intensity_problems(dataset: Dataset) -> list[str]:
    """Return the problem with the dataset's intensity range, if there is one."""
    try:
        _ = dataset.intensity_range
    except UserError as error:
        return [str(error)]
    return []


def _count_warnings(dataset: Dataset, sites: tuple[SiteFacts, ...]) -> list[str]:
    """Return a warning for every site whose number of cases differs from the published one."""
    if dataset.is_phantom:
        return []
    n_cases = {site.name: site.n_cases for site in sites}
    published = {site: n for site, n in dataset.published_counts.items() if not dataset.sites or site in dataset.sites}
    return [
        f"{site}: found {n_cases.get(site, 0)} cases, but the published collection has {n}"
        for site, n in published.items()
        if n_cases.get(site, 0) != n
    ]


def _notice_warnings(sites: tuple[SiteFacts, ...]) -> list[str]:
    """Return one warning per site for each kind of notice and each missing structure, with the number of cases."""
    warnings = []
    for site in sites:
        notices = [(f"no {name} in the mask", case) for case in site.cases for name in case.missing]
        notices += [(notice, case) for case in site.cases for notice in case.notices]
        for text, n in Counter(text for text, _ in notices).items():
            first = next(case.patient for other, case in notices if other == text)
            warnings.append(f"{site.name}: {text}: in {n} of {site.n_cases} cases, the first is {first}")
        warnings += _mask_value_warnings(site)
    return warnings


def _mask_value_warnings(site: SiteFacts) -> list[str]:
    """Warn if the masks of one site mark a single structure with different values: it may be another structure."""
    value_pairs = Counter(case.labels for case in site.cases if len(case.labels) == 2)
    if len(value_pairs) < 2 or any(len(case.labels) > 2 for case in site.cases):
        return []
    rarest = min(value_pairs, key=lambda labels: value_pairs[labels])
    first = next(case.patient for case in site.cases if case.labels == rarest)
    listed = "; ".join(f"{reading.format_values(labels)} in {n} masks" for labels, n in value_pairs.most_common())
    return [
        f"{site.name}: the masks contain different values ({listed}), the first with the rarest values is {first}; "
        "check whether all mean the same structure"
    ]
