"""Read a whole dataset and report everything that is wrong with it, before a training run fails because of it."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from medfed.core.determinism import cpu_threads
from medfed.core.errors import Problem, UserError
from medfed.datasets import check_names
from medfed.datasets.base import Dataset, Progress
from medfed.datasets.case import Case
from medfed.datasets.check_groups import as_problem
from medfed.datasets.check_masks import cover_warnings, equal_notices, lost_problem
from medfed.datasets.splits import split
from medfed.federation.survey import COVER
from medfed.federation.survey_mismatches import cover_mismatches
from medfed.images import dicom, mha_nrrd, reading, two_dimensional
from medfed.images.mask_colours import LOST

MAX_HASHED_CASES = 20_000  # a run hashes the files of at most this many cases; more would take too long


@dataclass(frozen=True)
class CaseFacts:
    """Properties of one case whose files can be read.

    Args:
        shape: image size (H, W, D) in voxels.
        spacing_mm: voxel size along H, W, D in mm; None if the file does not store it.
        lowest, highest: range of the intensities.
        labels: values in the mask file; for classification, the class number.
        missing: names of the structures that the mask does not contain.
        foreground: for each structure, the part of the image that it covers, in [0, 1]; empty for classification.
        notices: short descriptions of what was converted or looks unusual.
        sha256: of the image file, hexadecimal (`file_sha256`).
    """

    name: str
    patient: str
    shape: tuple[int, ...]
    spacing_mm: tuple[float, ...] | None
    lowest: float
    highest: float
    labels: tuple[int, ...]
    missing: tuple[str, ...]
    foreground: tuple[float, ...]
    notices: tuple[str, ...]
    sha256: str


@dataclass(frozen=True)
class SiteFacts:
    """Facts of one site: the number of all its cases, and those of its cases that can be read."""

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
        problems: what must be corrected before training.
        warnings: what may be a mistake and should be looked at.
        structures: names of the structures; empty for classification.
        classes: names of the classes; empty for segmentation.
    """

    root: str
    is_phantom: bool
    sites: tuple[SiteFacts, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    structures: tuple[str, ...]
    classes: tuple[str, ...]


@cpu_threads(1)
def check_dataset(
    dataset: Dataset, allow_duplicates: bool = False, progress: Progress | None = None, others_take_part: bool = False
) -> DatasetReport:
    """Read every case of a dataset and collect its properties, problems and warnings.

    A file that cannot be read is a problem in the report and raises no exception.

    Args:
        dataset: the dataset to check; its `root` must exist.
        allow_duplicates: True reports images that exist more than once as warnings instead of problems. The field
            `allow_duplicates` of the dataset does the same.
        progress: wraps the list of cases to show a progress bar, as tqdm does; None shows none.
        others_take_part: whether other hospitals, whose images are not in the dataset, take part. A single site, and a
            structure that no mask of the dataset shows, are then as expected.

    Raises:
        UserError: if the sites of the dataset cannot be determined.
    """
    names = dataset.site_names()
    found_at = {site: dataset.cases_and_problems(site) for site in names}
    problems = list(dict.fromkeys(problem for _, site_problems in found_at.values() for problem in site_problems))
    cases = [case for site_cases, _ in found_at.values() for case in site_cases]
    facts: dict[str, list[CaseFacts]] = {site: [] for site in names}
    known_sha256: dict[Path, str] = {}
    for case in progress(cases) if progress else cases:
        case_facts, case_problems = check_case(dataset, case)
        problems += case_problems
        if case_facts:
            facts[case.site].append(case_facts)
            known_sha256[case.image] = case_facts.sha256
    sites = tuple(SiteFacts(site, len(found_at[site][0]), tuple(facts[site])) for site in names)
    repeated, allow_duplicates = find_duplicates(cases, known_sha256), allow_duplicates or dataset.allow_duplicates
    problems = ([] if allow_duplicates else repeated) + problems + _intensity_problems(dataset)
    warnings = repeated if allow_duplicates else []
    warnings += [warning for site in ("", *names) for warning in dataset.contents.warnings.get(site, ())]
    warnings += dataset.contents.unread
    warnings += [*_count_warnings(dataset, sites), *_notice_warnings(sites), *_colour_warnings(dataset.root, sites)]
    has_keys = hasattr(dataset, "background_value") and hasattr(dataset, "mask_colours")
    covers: dict[str, dict[str, float]] = {}
    for site_facts in sites:
        foreground = [case.foreground for case in site_facts.cases if case.foreground]
        of_site = cover_warnings(site_facts.name, dataset.structures, foreground, has_keys)
        covers |= {} if of_site else {site_facts.name: _covers(foreground)}
        warnings += of_site
    warnings += [mismatch.problem for mismatch in cover_mismatches(covers, dataset.structures)]
    cases_at = {site: found_at[site][0] for site in names}
    warnings += [*_patient_warnings(dataset, cases_at), *_split_warnings(dataset, cases_at, others_take_part)]
    problems += [] if others_take_part else _shown_nowhere(dataset, sites)
    n_lost = {site.name: sum(LOST in case.notices for case in site.cases) for site in sites}
    problems += filter(None, (lost_problem(site.name, n_lost[site.name], len(site.cases)) for site in sites))
    return DatasetReport(
        dataset.root,
        dataset.is_phantom,
        sites,
        tuple(problems),
        tuple(warnings),
        tuple(dataset.structures),
        _classes(dataset),
    )


def check_case(dataset: Dataset, case: Case) -> tuple[CaseFacts | None, list[Problem]]:
    """Read the files of one case; return its facts, or None if there are problems, and the problems."""
    notices: list[str] = []
    problems: list[Problem] = []
    arrays = []
    if case.masks:
        try:
            dataset.check_sizes(case)
        except UserError as error:
            return None, [as_problem(error, case.mask_path)]
    for read in (dataset.read_image, *([dataset.read_mask] if case.masks else [])):
        try:
            arrays.append(read(case, notices))
        except UserError as error:
            problems.append(as_problem(error, case.mask_path if arrays or problems else case.image))
        except MemoryError:
            path = case.mask_path if arrays or problems else case.image
            found = "the file needs more memory than is free; expected a smaller image"
            return None, [Problem("too little memory", path, found, "crop the image")]
    if problems:
        return None, problems
    image = arrays[0]
    labels: tuple[int, ...] = () if case.label is None else (case.label,)
    missing: Sequence[str] = ()
    foreground: tuple[float, ...] = ()
    if case.masks:
        try:
            mask = dataset.fit_mask(case, image, arrays[1], notices)
        except UserError as error:
            return None, [as_problem(error, case.mask_path)]
        labels, missing = tuple(mask.meta["label_values"]), dataset.missing_structures(mask)
        channels = mask.as_subclass(torch.Tensor)
        foreground = tuple(float(channel.count_nonzero() / channel.numel()) for channel in channels)
        notices += equal_notices(image, channels)
    return CaseFacts(
        case.name,
        case.patient,
        tuple(image.shape[1:]),
        reading.spacing_mm(case.image, image),
        float(image.min()),
        float(image.max()),
        labels,
        tuple(missing),
        foreground,
        tuple(notices),
        file_sha256(case.image),
    ), []


def file_sha256(path: Path) -> str:
    """Return the SHA-256 (64 hexadecimal digits) of the file with an image's voxels, or of a folder of DICOM slices."""
    if path.is_dir():
        return dicom.folder_sha256(path)
    sha256 = hashlib.sha256()
    with open(mha_nrrd.data_file(path), "rb") as file:
        while chunk := file.read(1 << 20):  # hashlib.file_digest needs Python 3.11
            sha256.update(chunk)
    return sha256.hexdigest()


def find_duplicates(cases: Iterable[Case], known_sha256: Mapping[Path, str] | None = None) -> list[Problem]:
    """Return a problem for each image that exists more than once, first those that exist in several sites.

    Only files of equal size are read and compared; `known_sha256` saves reading some again. Damaged files are skipped.
    """
    by_size: dict[int, list[Case]] = defaultdict(list)
    for case in cases:
        try:
            by_size[_n_bytes(case.image)].append(case)
        except (OSError, UserError):  # reading the file will report the problem
            continue
    by_sha256: dict[str, list[Case]] = defaultdict(list)
    for group in by_size.values():
        for case in group if len(group) > 1 else ():
            by_sha256[(known_sha256 or {}).get(case.image) or file_sha256(case.image)].append(case)
    copies = {sha256: same for sha256, same in by_sha256.items() if len(same) > 1}
    in_sites = {sha256: len({case.site for case in same}) for sha256, same in copies.items()}
    return [
        Problem(
            "image in several sites" if in_sites[sha256] > 1 else "image that exists more than once",
            " and ".join(str(case.image) for case in copies[sha256]),
            "these files are the same image"
            + (", so that an unseen site may have an image that was trained on" if in_sites[sha256] > 1 else "")
            + f" (SHA-256 {sha256[:12]}); expected every image once",
            "remove all but one, or set data.allow_duplicates: true",
        )
        for sha256 in sorted(copies, key=lambda sha256: in_sites[sha256] == 1)
    ]


def _n_bytes(path: Path) -> int:
    """Return the size of the file that contains the voxels of an image, or of all slices of a DICOM series."""
    return dicom.folder_size(path) if path.is_dir() else mha_nrrd.data_file(path).stat().st_size


def _intensity_problems(dataset: Dataset) -> list[Problem]:
    """Return the problem with the dataset's intensity range, or an empty list."""
    try:
        _ = dataset.intensity_range
    except UserError as error:
        return [as_problem(error, Path(dataset.root))]
    return []


def _count_warnings(dataset: Dataset, sites: tuple[SiteFacts, ...]) -> list[Problem]:
    """Return a warning for every site whose number of cases differs from the published one."""
    if dataset.is_phantom:
        return []
    n_cases = {site.name: site.n_cases for site in sites}
    published = {site: n for site, n in dataset.published_counts.items() if not dataset.sites or site in dataset.sites}
    return [
        Problem(
            "other number of cases than published",
            site,
            f"found {n_cases.get(site, 0)} cases, but the published collection has {n}",
            "",
        )
        for site, n in published.items()
        if n_cases.get(site, 0) != n
    ]


def _notice_warnings(sites: tuple[SiteFacts, ...]) -> list[Problem]:
    """Return one warning per site for each kind of notice and each missing structure, with the number of cases."""
    warnings = []
    for site in sites:
        notices = [(f"no {name} in the mask", case) for case in site.cases for name in case.missing]
        notices += [(notice, case) for case in site.cases for notice in case.notices]
        for text, n in Counter(text for text, _ in notices).items():
            first = " and ".join([case.name for other, case in notices if other == text][:2])
            found = f"{text}: in {n} of {site.n_cases} cases, the first {'is' if n == 1 else 'are'} {first}"
            warnings.append(Problem(text, site.name, found, ""))
        warnings += _mask_value_warnings(site)
    return warnings


def _colour_warnings(root: str, sites: tuple[SiteFacts, ...]) -> list[Problem]:
    """Warn if two-colour masks show the single structure in different colours: these may mean different structures."""
    colours = Counter(
        notice
        for site in sites
        for case in site.cases
        for notice in case.notices
        if notice.startswith(two_dimensional.TWO_COLOURS)
    )
    if len(colours) < 2:
        return []
    listed = "; ".join(f"{notice} in {n} masks" for notice, n in colours.most_common())
    return [
        Problem(
            "masks of several colours",
            root,
            f"the masks show the structure in {len(colours)} colours, which are read as the same structure: {listed}",
            "if they mean different structures, name the colours in data.structure_names and data.mask_colours",
        )
    ]


def _covers(foreground: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the fact `COVER` of each structure: the median share that it covers of an image that shows it."""
    shown = [[part for part in parts if part] for parts in zip(*foreground)]
    return {f"{number}.{COVER}": median(parts) for number, parts in enumerate(shown) if parts}


def _patient_warnings(dataset: Dataset, cases_at: Mapping[str, list[Case]]) -> list[Problem]:
    """Warn for every site where each image counts as a patient although the names of the files suggest otherwise."""
    if getattr(dataset, "patient_pattern", "no such setting") is not None:
        return []
    warnings = []
    for site, cases in cases_at.items():
        if all(case.patient == case.name and not case.part for case in cases):
            names = [case.name if case.masks else case.name.rpartition("/")[2] for case in cases]
            warnings += check_names.patient_warning(site, names)
    return warnings


def _split_warnings(dataset: Dataset, cases_at: Mapping[str, list[Case]], others_take_part: bool) -> list[Problem]:
    """Warn if no site can be the unseen one, and for every site without a test part."""
    warnings = []
    if len(cases_at) == 1 and not others_take_part:
        found = "this is the only site here, so there is no score on an unseen site"
        warnings.append(Problem("no unseen site", next(iter(cases_at)), found, "add the folder of another site"))
    for site, cases in cases_at.items():
        if cases and not split(cases, 0, dataset.validation_ratio, dataset.test_ratio).test:
            n_patients = len({case.patient for case in cases})
            found = f"none of the {n_patients} patients is in the test part, so there is no score if this site trains"
            cure = "add patients, set data.test_ratio, or let it be the unseen site"
            warnings.append(Problem("site without a test part", site, found, cure))
    return warnings


def _never_shown(site: SiteFacts) -> list[str]:
    """Return the names of the structures that no mask of a site contains; none if some masks could not be read."""
    if not site.cases or len(site.cases) < site.n_cases:  # the masks of the other cases may contain them
        return []
    return sorted(set.intersection(*(set(case.missing) for case in site.cases)))


def _shown_nowhere(dataset: Dataset, sites: Sequence[SiteFacts]) -> list[Problem]:
    """Return the problem that no mask of any site shows some of the structures, or an empty list."""
    never_shown = [set(_never_shown(site)) for site in sites if site.n_cases]
    names = [name for name in dataset.structures if never_shown and all(name in names for names in never_shown)]
    if not names:
        return []
    keys = "check data.mask_values or data.mask_colours, and " if hasattr(dataset, "mask_values") else ""
    return [
        Problem(
            "structure that no mask shows",
            dataset.root,
            f"no mask of any site shows {' or '.join(names)}; expected every structure in at least one mask",
            f"{keys}look at the masks",
        )
    ]


def _classes(dataset: Dataset) -> tuple[str, ...]:
    """Return the names of the classes; empty if they cannot be determined, which is a problem of the dataset."""
    try:
        return tuple(dataset.classes)
    except UserError:
        return ()


def _mask_value_warnings(site: SiteFacts) -> list[Problem]:
    """Warn if the masks of one site mark a single structure with different values: it may be another structure."""
    value_pairs = Counter(case.labels for case in site.cases if len(case.labels) == 2)
    if len(value_pairs) < 2 or any(len(case.labels) > 2 for case in site.cases):
        return []
    rarest = min(value_pairs, key=lambda labels: value_pairs[labels])
    first = next(case.name for case in site.cases if case.labels == rarest)
    listed = "; ".join(f"{reading.format_values(labels)} in {n} masks" for labels, n in value_pairs.most_common())
    return [
        Problem(
            "masks of different values",
            site.name,
            f"the masks contain different values ({listed}), the first with the rarest values is {first}",
            "check whether all mean the same structure",
        )
    ]
