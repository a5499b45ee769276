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
from medfed.datasets.base import Case, Dataset
from medfed.datasets.case_facts import CaseFacts, measure_case
from medfed.datasets.site_facts import MAX_MEASURED, site_facts
from medfed.datasets.splits import Split
from medfed.federation.survey import SiteSurvey
from medfed.tasks.task import MAX_CACHE_BYTES, Task


@dataclass
class SiteImages:
    """Reads the images of the sites, and counts notices (unusual properties of images) for warnings."""

    dataset: Dataset
    task: Task
    bar: ProgressBar
    n_cases: int | None = None  # that all calls of `samples` read together; None for a single call
    max_cache_bytes: int = MAX_CACHE_BYTES  # of images, for all calls of `samples` together; masks are always kept
    notices: Counter[tuple[str, str]] = field(default_factory=Counter)  # numbers of images, by (site, notice)
    measures: dict[Case, CaseFacts] | None = None  # since the last call of `take_survey`; None measures nothing

    def samples(self, cases: Sequence[Case]) -> Any:
        """Read the cases of one site or client as samples with `len()` and `batch(indices)`; None without cases."""
        if not cases:
            return None
        max_cache_bytes = self.max_cache_bytes * len(cases) // (self.n_cases or len(cases))
        if self.measures is None:
            return self.task.load(self.dataset, cases, self._notice, self.bar.update, max_cache_bytes)
        measures: dict[Case, CaseFacts] | None = self.measures

        def observe(case: Case, image: MetaTensor, mask: MetaTensor | None) -> None:
            if measures is not None and len(measures) < MAX_MEASURED:
                measures[case] = measure_case(case, image, mask)

        samples = self.task.load(self.dataset, cases, self._notice, self.bar.update, max_cache_bytes, observe)
        measures = None  # images that are read again during the training are not measured again
        return samples

    def take_survey(self, cases: Sequence[Case], min_patients: int) -> SiteSurvey | None:
        """Return the survey of a site whose images were read since the last call; None if nothing is measured."""
        if self.measures is None:
            return None
        measures, self.measures = self.measures, {}
        facts = partial(site_facts, cases, measures, len(self.dataset.classes))
        return SiteSurvey(len({case.patient for case in cases}), min_patients, len(self.task.labels), facts)

    def check_files(self, cases: Sequence[Case]) -> None:
        """Read the test cases of a site without keeping them, to find damaged files before the training starts."""
        self.task.check_files(self.dataset, cases, self._notice, self.bar.update)

    def warn_of_notices(self, splits: Mapping[str, Split]) -> None:
        """Warn once for each site and notice."""
        for (site, notice), n in sorted(self.notices.items(), key=lambda entry: entry[0][0]):
            warnings.warn(f"{site}: {n} of {len(splits[site].all())} images: {notice}", stacklevel=2)

    def _notice(self, case: Case, notices: Sequence[str]) -> None:
        self.notices.update((case.site, notice) for notice in notices)
