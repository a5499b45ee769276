"""Read the images of the sites that a simulation trains, before training starts."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from medfed.cli.progress import ProgressBar
from medfed.datasets.base import Case, Dataset
from medfed.datasets.splits import Split
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
    """

    dataset: Dataset
    task: Task
    bar: ProgressBar
    n_cases: int | None = None
    max_cache_bytes: int = MAX_CACHE_BYTES
    notices: Counter[tuple[str, str]] = field(default_factory=Counter)

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
        return self.task.load(self.dataset, cases, self._notice, self.bar.update, max_cache_bytes)

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
        """
        for (site, notice), n in sorted(self.notices.items(), key=lambda entry: entry[0][0]):
            warnings.warn(f"{site}: {n} of {len(splits[site].all())} images: {notice}", stacklevel=2)

    def _notice(self, case: Case, notices: Sequence[str]) -> None:
        self.notices.update((case.site, notice) for notice in notices)
