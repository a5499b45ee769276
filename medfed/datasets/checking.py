"""Read a whole dataset and report everything that is wrong with it, before a training run fails because of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from monai.data import MetaTensor

from medfed.core.determinism import cpu_threads
from medfed.core.errors import Problem, UserError
from medfed.datasets import check_masks, check_patients
from medfed.datasets.base import Dataset, Progress
from medfed.datasets.case import Case
from medfed.datasets.case_measures import measure_case
from medfed.datasets.check_groups import as_problem
from medfed.datasets.check_report import CheckedCase, CheckedSite, DatasetReport
from medfed.datasets.duplicates import find_duplicates
from medfed.datasets.splits import split

MIN_BRIGHTEST = 32  # of 255


@cpu_threads(1)
def check_dataset(dataset: Dataset, progress: Progress | None = None, others_take_part: bool = False) -> DatasetReport:
    """Read every case of a dataset and collect its measures, problems and warnings.

    A file that cannot be read is a problem in the report and raises no exception. With `allow_duplicates`, images that
    exist more than once are warnings.

    Args:
        dataset: the dataset to check; its `root` must exist.
        progress: wraps the list of cases to show a progress bar, as tqdm does; None shows none.
        others_take_part: whether other hospitals, whose images are not in the dataset, take part. A single site, and a
            structure that no mask of the dataset shows, are then as expected.

    Raises:
        UserError: if the sites of the dataset cannot be determined.
    """
    found_at = {site: dataset.cases_and_problems(site) for site in dataset.site_names()}
    cases_at = {site: cases for site, (cases, _) in found_at.items()}
    problems = [problem for _, of_site in found_at.values() for problem in of_site]
    checked: dict[str, list[CheckedCase]] = {site: [] for site in cases_at}
    cases = [case for of_site in cases_at.values() for case in of_site]
    for case in progress(cases) if progress else cases:
        checked_case, of_case = check_case(dataset, case)
        problems += of_case
        if checked_case:
            checked[case.site].append(checked_case)
    sites = [CheckedSite(site, len(cases_at[site]), tuple(of_site)) for site, of_site in checked.items()]
    with _collect(problems, Path(dataset.root)):
        _ = dataset.intensity_range
    problems += [] if others_take_part else check_masks.shown_nowhere(dataset.root, dataset.structures, sites)
    warnings = [warning for site in ("", *cases_at) for warning in dataset.contents.warnings[site]]
    warnings += dataset.contents.unread
    warnings += _count_warnings(dataset, cases_at)
    warnings += [warning for site in sites for warning in _notice_warnings(site)]
    general, by_site = getattr(dataset, "mask_values", {}), getattr(dataset, "by_site", {})
    values = {site: by_site.get(site, {}).get("mask_values", general) for site in cases_at}
    assigned = [site for site, of_site in values.items() if {*dataset.structures} <= {*of_site}]
    warnings += check_masks.warnings(dataset.structures, sites, assigned)
    warnings += _dark_warnings(sites)
    warnings += check_patients.patient_warnings(dataset, cases_at)
    warnings += _split_warnings(dataset, cases_at, others_take_part)
    repeated = find_duplicates(cases)
    if dataset.allow_duplicates:
        warnings = repeated + warnings
    else:
        problems = repeated + problems
    return DatasetReport(
        dataset.root,
        dataset.is_phantom,
        tuple(sites),
        tuple(dict.fromkeys(problems)),
        tuple(dict.fromkeys(warnings)),
        tuple(dataset.structures),
        tuple(dataset.classes),
    )


def check_case(dataset: Dataset, case: Case) -> tuple[CheckedCase | None, list[Problem]]:
    """Read the files of one case; return what was found, or None if there are problems, and the problems."""
    notices: list[str] = []
    problems: list[Problem] = []
    image: MetaTensor | None = None
    mask: MetaTensor | None = None
    with _collect(problems, case.image):
        image = dataset.read_image(case, notices)
    if case.masks:
        with _collect(problems, case.mask_path):
            mask = dataset.read_mask(case, notices)
            mask = mask if image is None else dataset.fit_mask(case, image, mask, notices)
    if problems or image is None:
        return None, problems
    labels: tuple[int, ...] = () if case.label is None else (case.label,)
    if mask is not None:
        labels = tuple(mask.meta["label_values"])
        notices += [f"no {name} in the mask" for name, shown in zip(dataset.structures, mask) if not shown.any()]
    measures = measure_case(case, image, mask)
    return CheckedCase(case.name, case.patient, measures, labels, tuple(notices)), []


@contextmanager
def _collect(problems: list[Problem], path: Path) -> Iterator[None]:
    """Add an error about a file to the problems."""
    try:
        yield
    except UserError as error:
        problems.append(as_problem(error, path))


def _count_warnings(dataset: Dataset, cases_at: Mapping[str, Sequence[Case]]) -> list[Problem]:
    """Return a warning for every site whose number of cases differs from the published one."""
    published = {} if dataset.is_phantom else dataset.published_counts
    found = {site: len(cases_at.get(site, ())) for site in dataset.sites or published}
    return [
        Problem("other number of cases than published", site, f"found {found[site]} cases, but {n} are published", "")
        for site, n in published.items()
        if site in found and found[site] != n
    ]


def _notice_warnings(site: CheckedSite) -> list[Problem]:
    """Return a warning for each kind of notice, with the number of cases."""
    warnings = []
    for notice, n in Counter(notice for case in site.cases for notice in case.notices).items():
        first = " and ".join([case.name for case in site.cases if notice in case.notices][:2])
        found = f"{notice}: in {n} of {site.n_cases} cases, the first {'is' if n == 1 else 'are'} {first}"
        warnings.append(Problem(notice, site.name, found, ""))
    return warnings


def _dark_warnings(sites: Sequence[CheckedSite]) -> list[Problem]:
    """Warn of a site with almost black 2-D images: their files may have fewer bits than `intensity_max` says."""
    warnings = []
    for site in sites:
        brightest = [case.measures.highest for case in site.cases if case.measures.spacing_mm is None]
        if brightest and max(brightest) < MIN_BRIGHTEST:
            found = f"no image is brighter than {max(brightest):.3g} of 255, so the images are almost black"
            cure = (
                "if they have more than 8 bits, set data.intensity_max, or that of data.by_site, to the value for white"
            )
            warnings.append(Problem("dark images", site.name, found, cure))
    return warnings


def _split_warnings(dataset: Dataset, cases_at: Mapping[str, Sequence[Case]], others_take_part: bool) -> list[Problem]:
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
            if n_patients == 1 and cases[0].image.is_dir():
                cure += "; if PatientID is the same for all patients, set data.patient_pattern, such as '^([^/]+)'"
            warnings.append(Problem("site without a test part", site, found, cure))
    return warnings
