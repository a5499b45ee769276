"""Camelyon17-WILDS: patches of lymph node slides from five hospitals, normal or tumour (Koh et al., ICML 2021)."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from monai.data import MetaTensor

from medfed.core.bounds import ImageSize, NonNegativeInt
from medfed.core.errors import Problem, UserError
from medfed.datasets.base import PHANTOM_MARK, Contents, Dataset, Standardise
from medfed.datasets.card import Card
from medfed.datasets.case import Case
from medfed.images.file_names import check_table_inside, lies_inside, outside_problem

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FOLDER = "camelyon17_v1.0"
TABLE = "metadata.csv"
COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center")
CLASSES = ("normal", "tumour")
_PARTS = {0: "train", 1: "validation"}
_HELP = "copy the file again from its source"


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
    channels = 3
    classes = CLASSES
    intensity_range = (0.0, 255.0)

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
        """Return this dataset if the folder has the table of CAMELYON17-WILDS, else None."""
        has_table = any((folder / TABLE).is_file() for folder in (root, root / FOLDER))
        return cls(root=str(root)) if has_table else None

    @property
    def is_phantom(self) -> bool:
        return (self._home() / PHANTOM_MARK).is_file()

    def scan(self) -> Contents:
        """Find the patches that metadata.csv lists and that exist on the disk, at most `max_per_site` at each site."""
        home, contents = self._home(), Contents(classes=CLASSES)
        for centre, rows in self._table(home / TABLE).groupby("center"):
            site = f"hospital_{centre + 1}"
            cases, problems = contents.cases.setdefault(site, []), contents.problems[site]
            slides = rows["patient"].map("patient_{:03d}_node_".format) + rows["node"].astype(str)
            places = "_x_" + rows["x_coord"].astype(str) + "_y_" + rows["y_coord"].astype(str)
            chosen = self._subset(rows.assign(name="patch_" + slides + places))
            for (patient, node), of_slide in chosen.groupby(["patient", "node"]):
                folder = home / "patches" / f"patient_{patient:03d}_node_{node}"
                unit = f"{patient:03d}_{node}" if self.splits == "slide" else f"{patient:03d}"
                if not (self.follow_symlinks or lies_inside(Path(self.root), folder)):
                    problems.append(outside_problem(folder, Path(self.root)))
                    continue
                existing = self._patches(folder, problems)
                here = of_slide[of_slide["name"].isin(existing)]
                if n_missing := len(of_slide) - len(here):
                    first = of_slide["name"][~of_slide["name"].isin(existing)].iloc[0]
                    problems.append(
                        Problem(
                            "missing patches",
                            folder,
                            f"{n_missing:,} of the {len(of_slide):,} patches that metadata.csv lists are missing, the "
                            f"first is {first}.png",
                            "unpack the archive again, or remove the rows of these patches from metadata.csv",
                        )
                    )
                for name, tumour, part in here[["name", "tumor", "split"]].itertuples(index=False):
                    part = _PARTS[part] if self.splits == "published" else ""
                    cases.append(Case(site, name, folder / f"{name}.png", (), unit, tumour, part))
        return contents

    def read_image(self, case: Case, notices: list[str]) -> MetaTensor:
        image_notices: list[str] = []
        image = super().read_image(case, image_notices)
        # The patches are published as RGBA with full opacity, so a dropped alpha channel is not worth a notice.
        notices += [notice for notice in image_notices if notice != "alpha channel dropped"]
        return image

    def _home(self) -> Path:
        """Return the folder that contains metadata.csv."""
        root = Path(self.root)
        return root / FOLDER if (root / FOLDER / TABLE).is_file() and not (root / TABLE).is_file() else root

    def _table(self, path: Path) -> DataFrame:
        """Read and check metadata.csv, the table of all patches, with one row for each."""
        import pandas as pd

        columns = [*COLUMNS, *(["split"] if self.splits == "published" else [])]
        if not self.follow_symlinks:
            check_table_inside(Path(self.root), path)
        if not path.is_file():
            raise UserError(f"{path}: the file does not exist; expected {self.card.layout}; {self._help()}")
        try:
            types = dict.fromkeys(columns, "int64")
            table = pd.read_csv(path, usecols=lambda name: name in columns, dtype=types, encoding="utf-8-sig")
        except (OSError, ValueError, OverflowError) as error:  # those of pandas are ValueErrors
            reason = _first_wrong_value(path, columns) or " ".join(str(error).split())
            raise UserError(f"{path}: cannot read the published table ({reason}); {_HELP}") from None
        if missing := [name for name in columns if name not in table]:
            raise UserError(f"{path}: the column '{missing[0]}' is missing; expected {', '.join(columns)}; {_HELP}")
        if not len(table):
            raise UserError(f"{path}: the table has no rows below its header; expected one row per patch; {_HELP}")
        for name, last in (("center", 4), ("tumor", 1), ("split", 1)):
            if name in table and not (is_valid := table[name].between(0, last)).all():
                _refuse(path, table, ~is_valid, f"{name} is outside 0 to {last}")
        _refuse(path, table, table.duplicated(["patient", "node", "x_coord", "y_coord"]), "this patch is listed twice")
        centres = table.groupby("patient")["center"].transform("first")
        _refuse(path, table, table["center"] != centres, "the patient of this patch is at another center, too")
        return table.assign(split=table.get("split", 0))

    def _patches(self, folder: Path, problems: list[Problem]) -> set[str]:
        """Return the names of the patches in the folder of a slide, listed once; links out of `root` are problems."""
        names = set[str]()
        if not folder.is_dir():
            return names
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink() and not (self.follow_symlinks or lies_inside(Path(self.root), Path(entry.path))):
                    problems.append(outside_problem(Path(entry.path), Path(self.root)))
                names.add(entry.name.removesuffix(".png"))
        return names

    def _subset(self, rows: DataFrame) -> DataFrame:
        """Select at most `max_per_site` patches, from each class those whose names have the smallest hashes.

        Ranking by hash keeps the selection almost the same when a patch is added to the collection.
        """
        if not 0 < self.max_per_site < len(rows):
            return rows
        ranked = rows.iloc[rows["name"].map(_hash).argsort(kind="stable")]
        with_tumour = ranked[ranked["tumor"] == 1]
        n_tumour = int(self.max_per_site * len(with_tumour) / len(rows) + 0.5)
        chosen = with_tumour.index[:n_tumour], ranked[ranked["tumor"] == 0].index[: self.max_per_site - n_tumour]
        return rows.loc[[*chosen[0], *chosen[1]]]


def _hash(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=8).digest()


def _first_wrong_value(path: Path, columns: Sequence[str]) -> str:
    """Return the line and column of the first value that is no whole number; "" if the file is no table at all."""
    import pandas as pd

    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, skip_blank_lines=False, encoding="utf-8-sig")
    except (OSError, ValueError):
        return ""
    for row, values in enumerate(table.reindex(columns=columns).fillna("").itertuples(index=False)):
        wrong = [name for name, value in zip(columns, values) if not re.fullmatch(r"\s*-?\d{1,18}\s*", value)]
        if wrong and any(values):
            found = ",".join(values)
            return f"line {row + 2}: the column '{wrong[0]}' has no whole number; found {found[:80]}"
    return ""


def _refuse(path: Path, table: DataFrame, is_wrong: Series, problem: str) -> None:
    """Raise UserError with the first wrong row, if there is one."""
    if is_wrong.any():
        row = int(is_wrong.to_numpy().argmax())
        found = ", ".join(f"{name} {value}" for name, value in table.iloc[row].items())
        raise UserError(
            f"{path}: line {row + 2}: {problem} ({found}); {int(is_wrong.sum()):,} such rows; correct them, or {_HELP}"
        )
