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
        """Return this dataset for a folder with the layout ROOT/SITE/CLASS/NAME.png, or with a table of the images.

        Class folders with files of the same names are refused, because one of them may hold the masks of the other. A
        table (CSV or JSON) counts if it has the columns site, image and class, and no column mask.

        Args:
            root: an existing folder.

        Returns:
            The dataset with default settings; None if the folder has another layout.
        """
        lists = datalists.find_datalists(root)
        if list(lists.values()) == [False]:
            return cls(root=str(root), datalist=next(iter(lists)))
        return None if lists else super().recognise(root)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the class numbers, which start at 0.

        These are the names in the field `class_names`. If this field is empty, the classes are all class folders, or
        all values in the column class of the datalist, in alphabetical order.

        Raises:
            UserError: if a site has no folder for one of the classes, or if there are fewer than two classes.
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
        """Return the folder of each site by the name of the site; for a datalist, this is always `root`.

        Raises:
            UserError: if the datalist cannot be read.
        """
        if self.datalist is None:
            return super().find_sites()
        root = Path(self.root)
        return dict.fromkeys(datalists.rows_by_site(self._own_table(root / self.datalist)), root)

    def find_cases(self, site: str, folder: Path) -> tuple[list[Case], list[str]]:
        """Find the images of all classes of one site by the names of the files, without opening the files.

        Args:
            site: name of the site.
            folder: folder of the site, which contains one folder per class; not used for a datalist.

        Returns:
            Two lists. The first contains the images, one `Case` each, with their class numbers. The second contains the
            problems, one sentence each, such as a file that does not exist.
        """
        if self.datalist is None:
            return super().find_cases(site, folder)
        return datalists.site_cases(Path(self.root) / self.datalist, site, self.patient_pattern, self.classes)

    def site_warnings(self, site: str) -> list[str]:
        """Return a warning for every class of which a site has no image. This is allowed, but may be a mistake.

        Args:
            site: name of the site.

        Returns:
            One sentence for each such class.
        """
        if self.datalist is None:
            return super().site_warnings(site)
        labels = {case.label for case in self.find_cases(site, Path(self.root))[0]}
        return [f"{site}: no images of the class '{name}'" for n, name in enumerate(self.classes) if n not in labels]

    def lists_in_root(self) -> tuple[str, ...]:
        """Return the name of the datalist, if there is one."""
        return () if self.datalist is None else (self.datalist,)
