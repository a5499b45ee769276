"""Your own images to classify: one folder per site with one folder per class; PNG, JPEG, BMP or TIFF files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from medfed.datasets.card import Card
from medfed.datasets.class_folders import _ClassFolders


@dataclass(frozen=True)
class FolderClasses(_ClassFolders):
    """Your own images for classification, found as `ROOT/SITE/CLASS/NAME.png`, the layout of PACS.

    Every site has a folder for every class; the folder may be empty. `python -m medfed.keys folder_classes` explains
    the fields.
    """

    generality: ClassVar[int] = 1
    card: ClassVar[Card] = Card(
        title="Your own images to classify",
        description="Any images of two or more classes, in one folder per site and class, such as PACS.",
        licence="Yours.",
        citation="Yours.",
        how_to_get="Arrange the files in this layout; every site has the same class folders.",
        layout="ROOT/SITE/CLASS/NAME.png (or .jpg, .jpeg, .bmp, .tif)",
    )
