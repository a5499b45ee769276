"""Reading the images of the sites that a simulation holds, before anything is trained."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from monai.data import MetaTensor
from tqdm import tqdm

from medfed.datasets.base import Case, Dataset, Volume
from medfed.datasets.checking import MOST_HASHED
from medfed.datasets.splits import Split
from medfed.tasks.classification import KEPT_BYTES, Classification, Pictures
from medfed.tasks.segmentation import Segmentation, Slices


@dataclass
class SiteImages:
    """Reads cases, moves a bar on with each, and counts by site what is odd about them.

    Args:
        kept_bytes: how much of the pictures of one member may stay in memory.
    """

    dataset: Dataset
    task: Segmentation | Classification
    bar: tqdm
    kept_bytes: int = KEPT_BYTES
    notices: Counter[tuple[str, str]] = field(default_factory=Counter)

    def samples(self, cases: Sequence[Case]) -> Slices | Pictures | None:
        """What a member trains or validates on; None without cases."""
        if not cases:
            return None
        if isinstance(self.task, Classification):
            return self._pictures(self.task, cases)
        return self.task.prepare(list(self._volumes(cases)))

    def look_at(self, cases: Sequence[Case]) -> None:
        """Read what the evaluator will read again: what is wrong with a file is better known before training."""
        if isinstance(self.task, Classification):
            for case in cases[:MOST_HASHED]:  # of very many, some
                self.dataset.read_image(case, [])
                self.bar.update(1)
        else:
            for _ in self._volumes(cases):
                pass

    def say_notices(self, splits: Mapping[str, Split]) -> None:
        """Warn of what was counted, a line a site and kind."""
        for (site, notice), n in sorted(self.notices.items(), key=lambda found: found[0][0]):
            warnings.warn(f"{site}: {n} of {len(splits[site].all())} images: {notice}", stacklevel=2)

    def _pictures(self, task: Classification, cases: Sequence[Case]) -> Pictures:
        """Samples that read when they must; as many as stay in memory are read now."""

        def read(case: Case) -> MetaTensor:
            said: list[str] = []
            image = self.dataset.read_image(case, said)
            self.notices.update((case.site, notice) for notice in said)
            return image

        samples = replace(task.prepare(cases, read), kept_bytes=self.kept_bytes)
        for _ in samples.first():
            self.bar.update(1)
        return samples

    def _volumes(self, cases: Sequence[Case]) -> Iterator[Volume]:
        for case in cases:
            volume = self.dataset.load(case)
            self.notices.update((case.site, notice) for notice in volume.notices)
            self.bar.update(1)
            yield volume
