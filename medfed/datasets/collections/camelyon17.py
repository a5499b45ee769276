"""Camelyon17-WILDS: patches of lymph node slides from five hospitals, normal or tumour (Koh et al., ICML 2021)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from medfed.core.bounds import ImageSize, NonNegativeInt
from medfed.core.errors import Problem
from medfed.datasets.base import PHANTOM_MARK, Card, Contents, Dataset, Standardise
from medfed.datasets.case import Case
from medfed.datasets.walk import walk

if TYPE_CHECKING:
    from pandas import DataFrame

FOLDER = "camelyon17_v1.0"
TABLE = "metadata.csv"
COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")
CLASSES = ("normal", "tumour")
PARTS = {0: "train", 1: "validation"}


@dataclass(frozen=True)
class Camelyon17(Dataset):
    """Camelyon17-WILDS: classify patches of 96 x 96 pixels as normal or tumour.

    The class tells whether the central 32 x 32 pixels contain tumour. `root` is the folder camelyon17_v1.0 or the
    folder that contains it. The sites are hospital_1 to hospital_5 (column `center` of metadata.csv, plus 1). Only
    metadata.csv decides which patches exist; those that are missing on the disk are problems. The fields that are not
    explained here are explained at `Dataset`.

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

    card = Card(
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
    published_counts = {
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
        dataset = cls(root=str(root))
        return dataset if (dataset._home() / TABLE).is_file() else None

    @property
    def is_phantom(self) -> bool:
        return (self._home() / PHANTOM_MARK).is_file()

    def scan(self) -> Contents:
        """Find the patches that metadata.csv lists and that exist on the disk, at most `max_per_site` at each site."""
        home, contents = self._home(), Contents(classes=CLASSES)
        table = self._table(home / TABLE)
        existing = set(walk(home).images)
        for centre, rows in table.groupby("center"):
            site = f"hospital_{centre + 1}"
            cases = contents.cases.setdefault(site, [])
            for slide, patches in self._subset(rows).groupby("slide"):
                folder = home / "patches" / slide
                missing = []
                for name, unit, tumour, part in patches[["name", "unit", "tumor", "part"]].itertuples(index=False):
                    if f"patches/{slide}/{name}.png" in existing:
                        cases.append(Case(site, name, folder / f"{name}.png", (), unit, tumour, part))
                    else:
                        missing.append(name)
                if missing:
                    found = (
                        f"{len(missing):,} of the {len(patches):,} patches that metadata.csv lists are missing, the "
                        f"first is {missing[0]}.png"
                    )
                    cure = "unpack the archive again, or remove the rows of these patches from metadata.csv"
                    contents.problems[site].append(Problem("missing patches", folder, found, cure))
        return contents

    def _home(self) -> Path:
        """Return the folder that contains metadata.csv."""
        root = Path(self.root)
        return root / FOLDER if (root / FOLDER / TABLE).is_file() and not (root / TABLE).is_file() else root

    def _table(self, path: Path) -> DataFrame:
        """Read and check metadata.csv; return one row for each patch, with what `Case` needs."""
        import pandas as pd

        columns = [name for name in COLUMNS if name != "split" or self.splits == "published"]
        try:
            table = pd.read_csv(path, usecols=columns, encoding="utf-8-sig").dropna(how="all")
            table = table.astype("Int64").astype("int64")  # Int64 refuses numbers with decimals
        except (OSError, ValueError, TypeError) as error:  # those of pandas are ValueErrors and TypeErrors
            reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
            found = f"cannot read the table ({reason}); expected {self.card.layout}, with whole numbers in the columns "
            raise Problem("unreadable table", path, found + ", ".join(columns), self._help()) from None
        for name, n in {"tumor": 2, "center": 5, "split": 2}.items():
            if name in table and not table[name].between(0, n - 1).all():
                found = f"the column {name} has the values {sorted(table[name].unique())}; expected 0 to {n - 1}"
                raise Problem("wrong column", path, found, "copy the file again from its source")
        patient, node, x, y = (table[name].astype(str) for name in ("patient", "node", "x_coord", "y_coord"))
        patient = patient.str.zfill(3)
        slide = "patient_" + patient + "_node_" + node
        return table.assign(
            slide=slide,
            name="patch_" + slide + "_x_" + x + "_y_" + y,
            unit=patient + "_" + node if self.splits == "slide" else patient,
            part=table["split"].map(PARTS) if "split" in table else "",
        )

    def _subset(self, rows: DataFrame) -> DataFrame:
        """Select at most `max_per_site` patches, from each class those whose names have the smallest hashes.

        Ranking by hash keeps the selection almost the same when a patch is added to the collection.
        """
        if not 0 < self.max_per_site < len(rows):
            return rows
        hashes = rows["name"].map(lambda name: hashlib.blake2b(name.encode(), digest_size=8).digest())
        ranked = rows.iloc[hashes.argsort(kind="stable")]
        with_tumour, normal = (ranked.index[ranked["tumor"] == label] for label in (1, 0))
        n_tumour = int(self.max_per_site * len(with_tumour) / len(rows) + 0.5)
        return rows.loc[[*with_tumour[:n_tumour], *normal[: self.max_per_site - n_tumour]]]
