"""Recognising what lies in a folder, so that `python -m medfed.data check FOLDER` needs no config."""

from __future__ import annotations

from pathlib import Path

from medfed.core import registry
from medfed.core.errors import UserError
from medfed.datasets import pictures, reading
from medfed.datasets.base import Dataset
from medfed.datasets.camelyon17 import FOLDER, TABLE
from medfed.datasets.folder import Folder
from medfed.datasets.fundus import Fundus
from medfed.datasets.prostate import Prostate

MASK_NAMES = ("segmentation", "mask", "seg", "label", "labels")
IMAGE_NAMES = ("t2", "t2w", "image", "img")


def recognise(root: Path, kind: str | None = None) -> Dataset:
    """The dataset that a folder looks like.

    Args:
        root: an existing folder.
        kind: one of KINDS, where it is known.

    Raises:
        UserError: if there is no such folder.
    """
    if not root.is_dir():
        raise UserError(f"{root}: is no folder; expected one with a folder for each site")
    if kind is None:
        kind = next((name for name, looks_like in _SIGNS.items() if looks_like(root)), "folder")
    if kind != "folder":
        return registry.resolve("datasets", kind)(root=str(root))
    names = _case_folder_names(root)
    plain = Folder(root=str(root), **names)
    return Folder(root=str(root), image_channels=_channels(plain), **names)


def _is_camelyon17(root: Path) -> bool:
    return any((folder / TABLE).is_file() for folder in (root, root / FOLDER))


def _has_cases(dataset: Dataset) -> bool:
    return any(dataset.find_cases(site, folder)[0] for site, folder in dataset.find_sites().items())


def _has_classes(root: Path) -> bool:
    """Whether sites hold nothing but folders of pictures, more than one, and none that a mask would lie in."""
    sites = [path for path in sorted(root.iterdir()) if path.is_dir() and path.name[0] != "."]
    inside = [path for site in sites for path in sorted(site.iterdir()) if path.name[0] != "."]
    words = {path.name.lower() for path in inside}
    return (
        len(words) > 1
        and all(path.is_dir() for path in inside)
        and not words & {"images", "masks", *MASK_NAMES}
        and not any(file.is_dir() for folder in inside for file in folder.iterdir())
        and any(reading.is_picture(file) for folder in inside for file in folder.iterdir())
        and not any(_image_and_mask(folder) for folder in inside)
    )


_SIGNS = {
    "camelyon17": _is_camelyon17,
    "prostate": lambda root: _has_cases(Prostate(root=str(root))),
    "fundus": lambda root: _has_cases(Fundus(root=str(root))),
    "folder_classes": _has_classes,
}
KINDS = (*_SIGNS, "folder")


def _case_folder_names(root: Path) -> dict[str, object]:
    """The three fields of `Folder` for case folders, if the first folder of a site or of the root is one."""
    sites = Folder(root=str(root)).find_sites().values()
    for folder, alone in ((next(iter(sites), None), True), (_first_folder(sites), False)):
        if folder and (names := _image_and_mask(folder)):
            return {"image_name": names[0], "mask_name": names[1], "one_site_per_case": alone}
    return {}


def _first_folder(sites) -> Path | None:
    first = next(iter(sites), None)
    return next(iter(sorted(path for path in first.iterdir() if path.is_dir())), None) if first else None


def _image_and_mask(folder: Path) -> tuple[str, str] | None:
    """The stems of the image and the mask of a case folder; None if it does not look like one."""
    endings = {path.name: reading.suffix(path) for path in sorted(folder.iterdir()) if path.is_file()}
    stems = [name.removesuffix(ending) for name, ending in endings.items() if ending and name.endswith(ending)]
    masks = [stem for stem in stems if stem.lower() in MASK_NAMES]
    others = [stem for stem in stems if stem not in masks]
    known = [stem for stem in others if stem.lower() in IMAGE_NAMES]
    images = known or others
    return (images[0], masks[0]) if len(masks) == 1 and len(images) == 1 else None


def _channels(dataset: Folder) -> int:
    """Those of the first image that tells; 1 if none does."""
    for site, folder in dataset.find_sites().items():
        for case in dataset.find_cases(site, folder)[0]:
            if reading.is_picture(case.image) and (found := pictures.count_channels(case.image)):
                return found
    return 1
