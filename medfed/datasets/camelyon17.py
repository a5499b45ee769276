"""Camelyon17-WILDS: patches of lymph node slides from five hospitals, normal or tumour (Koh et al., ICML 2021)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from monai.data import MetaTensor

from medfed.core.bounds import ImageSize, NonNegativeInt
from medfed.core.errors import UserError
from medfed.datasets import camelyon17_metadata as metadata
from medfed.datasets import camelyon17_slides as slides
from medfed.datasets.base import PHANTOM_MARK, Dataset, Standardise
from medfed.datasets.card import Card
from medfed.datasets.case import Case

FOLDER = "camelyon17_v1.0"
TABLE = "metadata.csv"
_PARTS = {0: "train", 1: "validation"}


@dataclass(frozen=True)
class Camelyon17(Dataset):
    """Camelyon17-WILDS: classify patches of 96 x 96 pixels as normal or tumour.

    The class tells whether the central 32 x 32 pixels contain tumour. `root` is the folder camelyon17_v1.0 or the
    folder that contains it. The sites are hospital_1 to hospital_5 (column `center` of metadata.csv, plus 1). Only
    metadata.csv decides which patches exist; each slide's folder is listed once to find patches that are missing on the
    disk. The fields that are not explained here are explained at `Dataset`.

    Args:
        image_size: side length in pixels, at least 1, of the images that the network receives; patches are resized to
            it.
        splits: which images stay in the same part (training, validation or test). "patient": all patches of a patient.
            "slide": all patches of a slide, but two slides of a patient may be in different parts. "published": the
            column `split` of metadata.csv decides (0 training, 1 validation); it was sampled by patch, so patches of
            one slide are in both parts, and there are no test patches at seen sites.
        max_per_site: largest number of patches per site; 0 uses all. The selection keeps the site's fraction of tumour
            patches, and the same patches are selected in every run.
    """

    image_size: ImageSize = 96
    standardise: Standardise = "imagenet"
    splits: Literal["patient", "slide", "published"] = "patient"
    max_per_site: NonNegativeInt = 0

    card: ClassVar[Card] = Card(
        title="Camelyon17-WILDS, five hospitals",
        description="455,954 patches (96 x 96 pixels, about 1 micrometre each, H&E) of lymph nodes of breast cancer "
        "patients; 50 slides of five Dutch hospitals, ten each. The class says whether the central 32 x 32 pixels "
        "contain tumour.",
        licence="CC0 1.0.",
        citation="Bandi et al., 'From detection of individual metastases to classification of lymph node status at the "
        "patient level: the CAMELYON17 challenge', IEEE TMI 2018; Koh et al., 'WILDS: a benchmark of in-the-wild "
        "distribution shifts', ICML 2021.",
        how_to_get="Follow the link on https://wilds.stanford.edu/datasets/ (Camelyon17, version 1.0, 10.7 GB) and "
        "unpack it so that data/camelyon17/camelyon17_v1.0/metadata.csv is there. Without it, `if_missing: phantom` "
        "makes a synthetic phantom.",
        layout="ROOT/camelyon17_v1.0/metadata.csv with ROOT/camelyon17_v1.0/patches/patient_PPP_node_N/"
        "patch_patient_PPP_node_N_x_X_y_Y.png (or ROOT is camelyon17_v1.0 itself)",
    )
    published_counts: ClassVar[Mapping[str, int]] = {
        "hospital_1": 59436,
        "hospital_2": 34904,
        "hospital_3": 85054,
        "hospital_4": 129838,
        "hospital_5": 146722,
    }

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
        """Return this dataset if the folder has the table of CAMELYON17-WILDS, else None."""
        has_table = any((folder / TABLE).is_file() for folder in (root, root / FOLDER))
        return cls(root=str(root)) if has_table else None

    @property
    def channels(self) -> int:
        return 3

    @property
    def classes(self) -> tuple[str, ...]:
        return ("normal", "tumour")

    @property
    def intensity_range(self) -> tuple[float, float]:
        return 0.0, 255.0

    @property
    def is_phantom(self) -> bool:
        return (self._home() / PHANTOM_MARK).is_file()

    def find_sites(self) -> dict[str, Path]:
        """Return the folder that contains metadata.csv for each site that it lists; all sites have the same folder."""
        home = self._home()
        centres = np.unique(self._table()[:, metadata.CENTRE])
        return {f"hospital_{centre + 1}": home for centre in centres.tolist()}

    def find_cases(self, site: str, folder: Path) -> tuple[list[Case], list[str]]:
        """Find the patches that metadata.csv lists and that exist on the disk, at most `max_per_site`."""
        table = self._table()
        rows = table[table[:, metadata.CENTRE] == int(site.removeprefix("hospital_")) - 1]
        cases = self._subset([self._case(site, folder / "patches", row) for row in rows.tolist()])
        return slides.existing_cases(cases, Path(self.root), self.follow_symlinks)

    def cases_and_problems(self, site: str) -> tuple[list[Case], list[str]]:
        """As in `Dataset`, with fresh listings of the folders of slides."""
        slides.clear_listings()  # files may have been added or removed since the last call
        found = super().cases_and_problems(site)
        slides.clear_listings()  # frees 200 bytes for each patch
        return found

    def unread(self, cases: Iterable[Case], problems: Iterable[str]) -> list[str]:
        """Return nothing: metadata.csv says which patches there are, and `max_per_site` leaves most of them out."""
        return []

    def read_image(self, case: Case, notices: list[str]) -> MetaTensor:
        image_notices: list[str] = []
        image = super().read_image(case, image_notices)
        # The patches are published as RGBA with full opacity, so a dropped alpha channel is not worth a notice.
        notices += [notice for notice in image_notices if notice != "alpha channel dropped"]
        return image

    def _is_inside(self, path: Path) -> bool:
        """As in `Dataset`, but from a listing: a query for each of the 455,954 files would be slow."""
        return self.follow_symlinks or not slides.is_link(path) or super()._is_inside(path)

    def _home(self) -> Path:
        """Return the folder that contains metadata.csv."""
        root = Path(self.root)
        return root / FOLDER if (root / FOLDER / TABLE).is_file() and not (root / TABLE).is_file() else root

    def _table(self) -> np.ndarray:
        """The rows of metadata.csv as numbers, one row per patch."""
        path = self._home() / TABLE
        if not path.is_file():
            raise UserError(f"{path}: the file does not exist; expected {self._layout_and_help()}")
        return metadata.read(self._own_table(path), with_split=self.splits == "published")

    def _case(self, site: str, patches: Path, row: Sequence[int]) -> Case:
        patient, node, x, y, tumour, _, split, _ = row
        slide = f"patient_{patient:03d}_node_{node}"
        name = f"patch_{slide}_x_{x}_y_{y}"
        unit = f"{patient:03d}_{node}" if self.splits == "slide" else f"{patient:03d}"
        part = _PARTS[split] if self.splits == "published" else ""
        return Case(site, name, _slide_folder(patches, slide) / f"{name}.png", None, unit, tumour, part)

    def _subset(self, cases: list[Case]) -> list[Case]:
        """Select at most `max_per_site` patches, from each class those whose names have the smallest hashes.

        Ranking by hash keeps the selection almost the same when a patch is added to the collection.
        """
        if not 0 < self.max_per_site < len(cases):
            return cases
        with_tumour, normal = ([case for case in cases if case.label == label] for label in (1, 0))
        n_tumour = int(self.max_per_site * len(with_tumour) / len(cases) + 0.5)
        selected = _smallest_hashes(with_tumour, n_tumour) + _smallest_hashes(normal, self.max_per_site - n_tumour)
        return sorted(selected, key=lambda case: case.name)


def _smallest_hashes(cases: list[Case], n: int) -> list[Case]:
    return sorted(cases, key=lambda case: hashlib.blake2b(case.name.encode(), digest_size=8).digest())[:n]


@lru_cache(maxsize=256)
def _slide_folder(patches: Path, slide: str) -> Path:
    """Return the folder of a slide; cached, so that the paths of its patches share one object."""
    return patches / slide
