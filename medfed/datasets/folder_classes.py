"""Your own images to classify: one folder per site with one folder per class; PNG, JPEG, BMP or TIFF files."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import ClassVar

from medfed.core.errors import UserError
from medfed.datasets import datalists
from medfed.datasets.base import Dataset
from medfed.datasets.card import Card
from medfed.datasets.case import Case
from medfed.datasets.class_folders import _ClassFolders
from medfed.datasets.class_search import class_key


@dataclass(frozen=True)
class FolderClasses(_ClassFolders):
    """Your own images for classification, found as `ROOT/SITE/CLASS/NAME.png`, the layout of PACS, or in a table.

    Every site has a folder for every class; the folder may be empty. `python -m medfed.keys folder_classes` explains
    the other fields.

    Args:
        datalist: a CSV or JSON file in `root` that lists the images, with the columns site, image, class, and
            optionally patient and split; paths are relative to it. null searches the folders.
    """

    datalist: str | None = None

    generality: ClassVar[int] = 1
    card: ClassVar[Card] = Card(
        title="Your own images to classify",
        description="Any images of two or more classes, in one folder per site and class, such as PACS.",
        licence="Yours.",
        citation="Yours.",
        how_to_get="Arrange the files in this layout; every site has the same class folders.",
        layout="ROOT/SITE/CLASS/NAME.png (or .jpg, .jpeg, .bmp, .tif)",
    )

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
        """Return this dataset for a folder with a table of images, or with the layout ROOT/SITE/CLASS/NAME.png.

        A table (CSV or JSON) counts if it has the columns site, image and class, and no column mask.
        """
        lists = datalists.find_datalists(root)
        if list(lists.values()) == [False]:
            return cls(root=str(root), datalist=next(iter(lists)))
        return None if lists else super().recognise(root)

    @property
    def classes(self) -> tuple[str, ...]:
        """The field `class_names`; if it is empty, all class folders, or all values in the column class, sorted.

        UserError if a site lacks the folder of a class, if values of the column class differ only in upper and lower
        case, or if there are fewer than two classes.
        """
        if self.datalist is None:
            return super().classes
        rows = datalists.read_datalist(Path(self.root) / self.datalist)
        sites = self.site_names()
        names = self.class_names or tuple(sorted({row.class_name for row in rows if row.site in sites} - {""}))
        if same := [pair for pair in combinations(names, 2) if class_key(pair[0]) == class_key(pair[1])]:
            raise UserError(
                f"{Path(self.root) / self.datalist}: the column 'class' has the values {' and '.join(same[0])}, which "
                "differ only in upper and lower case; expected one spelling for each class; write them in the same way"
            )
        if len(names) < 2:
            raise UserError(
                f"{Path(self.root) / self.datalist}: the column 'class' has {len(names)} different values; expected at "
                "least two classes"
            )
        return names

    def find_sites(self) -> dict[str, Path]:
        if self.datalist is None:
            return super().find_sites()
        root = Path(self.root)
        return dict.fromkeys(datalists.rows_by_site(self._own_table(root / self.datalist)), root)

    def find_cases(self, site: str, folder: Path) -> tuple[list[Case], list[str]]:
        """Return the cases of a site, from the datalist if there is one, and one sentence for each problem."""
        if self.datalist is None:
            return super().find_cases(site, folder)
        return datalists.site_cases(Path(self.root) / self.datalist, site, self.patient_pattern, self.classes)

    def site_warnings(self, site: str) -> list[str]:
        """With a datalist, one sentence for each class of which the site has no image."""
        if self.datalist is None:
            return super().site_warnings(site)
        labels = {case.label for case in self.find_cases(site, Path(self.root))[0]}
        return [f"{site}: no images of the class '{name}'" for n, name in enumerate(self.classes) if n not in labels]

    def lists_in_root(self) -> tuple[str, ...]:
        """The datalist, if there is one."""
        return () if self.datalist is None else (self.datalist,)
