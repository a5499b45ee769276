"""Camelyon17-WILDS: patches of lymph nodes of five hospitals, with tumour or without (Koh et al., ICML 2021)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from monai.data import MetaTensor

from medfed.core.bounds import NonNegativeInt, PositiveInt
from medfed.core.errors import UserError
from medfed.datasets import camelyon17_metadata as metadata
from medfed.datasets import camelyon17_slides as slides
from medfed.datasets.base import PHANTOM_MARK, Card, Case, Dataset, Volume

FOLDER = "camelyon17_v1.0"
TABLE = "metadata.csv"
_PARTS = {0: "train", 1: "validation"}


@dataclass(frozen=True)
class Camelyon17(Dataset):
    """Patches of 96 x 96 pixels; the class tells whether the central 32 x 32 hold tumour. See `Dataset` for the rest.

    `root` is the folder camelyon17_v1.0 or the one that holds it. Sites are hospital_1 to hospital_5, the column
    `center` and one. Nothing but metadata.csv says what there is; every slide's folder is listed once, to find patches
    that the table names and the disk lacks.

    Args:
        splits: what is never divided between training, validation and test. "patient": all patches of a patient.
            "slide": all of a slide, so that two slides of one patient may part. "published": the column `split` of
            WILDS decides, 0 training and 1 validation. It was drawn by patch, so that patches of one slide are in
            both, and there is no seen-site test: that part is empty.
        max_per_site: at most so many patches of each site, 0 for all: the same ones whenever and wherever they are
            drawn, and normal to tumour as in the whole site.
    """

    image_size: PositiveInt = 96
    splits: Literal["patient", "slide", "published"] = "patient"
    max_per_site: NonNegativeInt = 0

    card: ClassVar[Card] = Card(
        title="Camelyon17-WILDS, five hospitals",
        description="455,954 patches (96 x 96 pixels, about 1 micrometre each, H&E) of lymph nodes of breast cancer "
        "patients; 50 slides of five Dutch hospitals, ten each. The class says whether the middle 32 x 32 pixels hold "
        "tumour.",
        licence="CC0 1.0.",
        citation="Bandi et al., 'From detection of individual metastases to classification of lymph node status at the "
        "patient level: the CAMELYON17 challenge', IEEE TMI 2018; Koh et al., 'WILDS: a benchmark of in-the-wild "
        "distribution shifts', ICML 2021.",
        how_to_get="Follow the link on https://wilds.stanford.edu/datasets/ (Camelyon17, version 1.0, 10.7 GB) and "
        "unpack it so that data/camelyon17/camelyon17_v1.0/metadata.csv is there. Without it, `if_missing: phantom` "
        "makes a synthetic twin.",
        layout="ROOT/camelyon17_v1.0/metadata.csv with ROOT/camelyon17_v1.0/patches/patient_PPP_node_N/"
        "patch_patient_PPP_node_N_x_X_y_Y.png (or ROOT is camelyon17_v1.0 itself)",
    )
    published_counts: ClassVar[Mapping[str, int]] = {
        "hospital_1": 59436, "hospital_2": 34904, "hospital_3": 85054, "hospital_4": 129838, "hospital_5": 146722,
    }  # fmt: skip

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
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
        home = self._home()
        centres = np.unique(self._table()[:, metadata.CENTRE])
        return {f"hospital_{centre + 1}": home for centre in centres.tolist()}

    def find_cases(self, site: str, folder: Path) -> tuple[list[Case], list[str]]:
        table = self._table()
        rows = table[table[:, metadata.CENTRE] == int(site.removeprefix("hospital_")) - 1]
        cases = self._subset([self._case(site, folder / "patches", row) for row in rows.tolist()])
        return slides.present(cases, Path(self.root), self.follow_symlinks)

    def cases_and_problems(self, site: str) -> tuple[list[Case], list[str]]:
        slides.clear_listings()  # the disk may have changed
        return super().cases_and_problems(site)

    def read_image(self, case: Case, notices: list[str]) -> MetaTensor:
        said: list[str] = []
        image = super().read_image(case, said)
        notices += [notice for notice in said if notice != "alpha channel dropped"]  # published as RGBA, all opaque
        return image

    def load(self, case: Case) -> Volume:
        raise TypeError(f"{case.image}: has a class and no mask; read it with read_image")

    def _is_inside(self, path: Path) -> bool:
        """As the base class has it, without asking the disk for each of 455,954 patches."""
        return self.follow_symlinks or not slides.is_link(path) or super()._is_inside(path)

    def _home(self) -> Path:
        root = Path(self.root)
        return root / FOLDER if (root / FOLDER / TABLE).is_file() and not (root / TABLE).is_file() else root

    def _table(self) -> np.ndarray:
        path = self._home() / TABLE
        if not path.is_file():
            raise UserError(f"{path}: is missing; expected {self._layout_and_help()}")
        return metadata.read(path, with_split=self.splits == "published")

    def _case(self, site: str, patches: Path, row: Sequence[int]) -> Case:
        patient, node, x, y, tumour, _, split, _ = row
        slide = f"patient_{patient:03d}_node_{node}"
        name = f"patch_{slide}_x_{x}_y_{y}"
        subject = f"{patient:03d}_{node}" if self.splits == "slide" else f"{patient:03d}"
        part = _PARTS[split] if self.splits == "published" else ""
        return Case(site, name, _slide_folder(patches, slide) / f"{name}.png", None, subject, tumour, part)

    def _subset(self, cases: list[Case]) -> list[Case]:
        """The first of each class by the hash of their names, so that one patch more moves few."""
        if not 0 < self.max_per_site < len(cases):
            return cases
        with_tumour, normal = ([case for case in cases if case.label == label] for label in (1, 0))
        n_tumour = int(self.max_per_site * len(with_tumour) / len(cases) + 0.5)
        taken = _first(with_tumour, n_tumour) + _first(normal, self.max_per_site - n_tumour)
        return sorted(taken, key=lambda case: case.patient)


def _first(cases: list[Case], n: int) -> list[Case]:
    return sorted(cases, key=lambda case: hashlib.blake2b(case.patient.encode(), digest_size=8).digest())[:n]


@lru_cache(maxsize=256)
def _slide_folder(patches: Path, slide: str) -> Path:
    return patches / slide
