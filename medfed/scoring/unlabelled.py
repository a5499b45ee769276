"""The images of a hospital without labels: found by their names; no mask is opened."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from monai.data import MetaTensor

from medfed.core.errors import UserError
from medfed.datasets import reading
from medfed.datasets.base import PHANTOM_MARK, Dataset
from medfed.datasets.case import Case
from medfed.datasets.file_names import list_folder
from medfed.datasets.name_pairs import MASK_WORDS, split_names
from medfed.datasets.site_search import IMAGE_FOLDERS, MASK_FOLDERS

OF_MASKS = {*MASK_WORDS, *MASK_FOLDERS, "manual", "manuals"}


@dataclass(frozen=True)
class Images:
    """Images whose masks a bundle predicts.

    Args:
        root: the folder of the images.
        cases: the cases; the site of a case is the name of a folder.
        read: reads the image of a case as (C, H, W, D), as `Dataset.read_image` does.
        is_phantom: whether the images are synthetic.
    """

    root: Path
    cases: tuple[Case, ...]
    read: Callable[[Case], MetaTensor]
    is_phantom: bool

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> Images:
        """Return all images of a dataset with labels. No label is read.

        Args:
            dataset: the dataset.
        """
        by_site = dataset.cases_by_site(dataset.site_names())
        cases = tuple(case for of_site in by_site.values() for case in of_site)
        return cls(Path(dataset.root), cases, lambda case: dataset.read_image(case, []), dataset.is_phantom)

    @classmethod
    def in_folder(cls, folder: Path, channels: int) -> Images:
        """Find the images in a folder and in the folders inside it. Files that are called like masks are left out.

        Args:
            folder: the folder. An image in it belongs to a site with the name of the folder; an image in a folder
                inside it, to a site with the name of that folder.
            channels: number of image channels that the network expects. Grey 2-D images are repeated as three channels.

        Raises:
            UserError: if the folder does not exist or has no image that medfed can read.
        """
        if not folder.is_dir():
            raise UserError(f"{folder}: is not a folder; expected a folder with the images")
        cases = tuple(_cases(folder))
        if not cases:
            raise UserError(
                f"{folder}: has no image with one of the endings {', '.join(reading.SUFFIXES)}; name a "
                "folder with images, and convert DICOM series to NIfTI first"
            )

        def read(case: Case) -> MetaTensor:
            return reading.read_image(case.image, channels, [], grey_to_rgb=channels == 3)

        marks = (parent / PHANTOM_MARK for parent in (folder.resolve(), *folder.resolve().parents))
        return cls(folder, cases, read, any(mark.is_file() for mark in marks))


def _cases(root: Path) -> Iterator[Case]:
    """Yield a case for each image in a folder and the folders inside it, sorted by name."""
    waiting = [root]
    while waiting:
        folder = waiting.pop(0)
        listing = list_folder(folder)
        waiting += [path for name, path in listing.folders.items() if not _is_of_masks(name)]
        stems: dict[str, Path] = {}
        for path in listing.files:
            stem = path.name.removesuffix(path.name[-len(reading.suffix(path) or "") :])
            stems[path.name if stem in stems else stem] = path  # a.png and a.jpg are two images
        images, _ = split_names(list(stems))
        parts = [part for part in folder.relative_to(root).parts if part.lower() not in IMAGE_FOLDERS]
        for stem in images:
            yield Case(parts[0] if parts else root.resolve().name, "/".join([*parts[1:], stem]), stems[stem])


def _is_of_masks(name: str) -> bool:
    """Return whether one of the words in a folder's name, or two together, are a usual name of masks."""
    words = re.findall(r"[a-z]+", name.lower())
    return not OF_MASKS.isdisjoint([*words, *map("".join, zip(words, words[1:]))])
