"""Read the images of the sites that a simulation trains, before training starts."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from monai.data import MetaTensor

from medfed.cli.progress import ProgressBar
from medfed.core.errors import UserError
from medfed.datasets.base import Case, Dataset
from medfed.datasets.check_masks import lost_problem
from medfed.datasets.mask_colours import LOST
from medfed.datasets.measures import MAX_MEASURED, CaseMeasures, measure_case, site_facts
from medfed.datasets.splits import Split
from medfed.federation.survey import SiteSurvey
from medfed.tasks.task import MAX_CACHE_BYTES, Task


@dataclass
class SiteImages:
    """Reads the images of the sites, advances a progress bar, and counts notices (unusual properties of images).

    Args:
        dataset: the dataset, which reads the cases.
        task: the task, which prepares the images for the network.
        bar: progress bar, advanced by one for each case.
        n_cases: number of cases that all calls of `samples` read together. None means that `samples` is called only
            once.
        max_cache_bytes: largest number of bytes of images that all calls of `samples` together keep in memory, divided
            among the calls in proportion to their numbers of cases. Masks and images with masks are always kept.
        notices: how many images have each notice, by (site, notice).
        measures: the measures of the cases that were read since the last call of `take_survey`, for the survey before
            round 1; None measures nothing.
    """

    dataset: Dataset
    task: Task
    bar: ProgressBar
    n_cases: int | None = None
    max_cache_bytes: int = MAX_CACHE_BYTES
    notices: Counter[tuple[str, str]] = field(default_factory=Counter)
    measures: dict[Case, CaseMeasures] | None = None

    def samples(self, cases: Sequence[Case]) -> Any:
        """Read cases (images with their masks or classes) and return them as samples for training or validation.

        Args:
            cases: the cases, all of one site or client.

        Returns:
            Prepared samples with `len()` and `batch(indices)`; None if `cases` is empty.

        Raises:
            UserError: if a file cannot be read.
        """
        if not cases:
            return None
        max_cache_bytes = self.max_cache_bytes * len(cases) // (self.n_cases or len(cases))
        if self.measures is None:
            return self.task.load(self.dataset, cases, self._notice, self.bar.update, max_cache_bytes)
        measures: dict[Case, CaseMeasures] | None = self.measures

        def observe(case: Case, image: MetaTensor, mask: MetaTensor | None) -> None:
            if measures is not None and len(measures) < MAX_MEASURED:
                measures[case] = measure_case(case, image, mask)

        samples = self.task.load(self.dataset, cases, self._notice, self.bar.update, max_cache_bytes, observe)
        measures = None  # images that are read again during the training are not measured again
        return samples

    def take_survey(self, cases: Sequence[Case], min_patients: int) -> SiteSurvey | None:
        """Return the survey of a site whose images were read since the last call; None if nothing is measured.

        Args:
            cases: the cases of the site that train or validate.
            min_patients: the minimum group size of the site.
        """
        if self.measures is None:
            return None
        measures, self.measures = self.measures, {}
        facts = partial(site_facts, cases, measures, len(self.dataset.classes))
        return SiteSurvey(len({case.patient for case in cases}), min_patients, len(self.task.labels), facts)

    def check_files(self, cases: Sequence[Case]) -> None:
        """Read the cases that will be tested after the training, to find damaged files before the training starts.

        The images are not kept in memory.

        Args:
            cases: the test cases (images with their masks or classes) of one site.

        Raises:
            UserError: if a file cannot be read.
        """
        self.task.check_files(self.dataset, cases, self._notice, self.bar.update)

    def warn_of_notices(self, splits: Mapping[str, Split]) -> None:
        """Warn about what was converted or looks unusual in the images that were read.

        There is one warning for each site and notice, with the number of images that have this notice.

        Args:
            splits: dictionary from the name of a site to its patients; they give the total number of images.

        Raises:
            UserError: if every mask of a site lost its foreground.
        """
        for site, patients in splits.items():
            if problem := lost_problem(site, self.notices[site, LOST], len(patients.all())):
                raise UserError(problem)
        for (site, notice), n in sorted(self.notices.items(), key=lambda entry: entry[0][0]):
            warnings.warn(f"{site}: {n} of {len(splits[site].all())} images: {notice}", stacklevel=2)

    def _notice(self, case: Case, notices: Sequence[str]) -> None:
        self.notices.update((case.site, notice) for notice in notices)
