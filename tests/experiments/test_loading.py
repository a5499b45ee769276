from pathlib import Path

import torch
from monai.data import MetaTensor
from tqdm import tqdm

from medfed.datasets.case import Case
from medfed.experiments.loading import SiteImages
from medfed.tasks.classification import Classification


class Black:
    """A dataset of black images."""

    def read_image(self, case, notices):
        return MetaTensor(torch.zeros(3, 8, 8, 1))


def test_all_sites_of_a_process_together_keep_the_largest_number_of_images():
    """Room for 4 images, and sites with 6 and 2: they keep 3 and 1 images."""
    task, limit = Classification(("a", "b"), 3, 8), 4 * 3 * 8 * 8
    images = SiteImages(Black(), task, tqdm(disable=True), n_cases=8, max_cache_bytes=limit)
    sites = [[Case(site, str(k), Path(f"{k}.png"), label=0) for k in range(n)] for site, n in (("s", 6), ("t", 2))]
    assert [len(images.samples(cases)._cache) for cases in sites] == [3, 1]
