"""Recognising what lies in a folder, so that `python -m medfed.data check FOLDER` needs no config."""

from __future__ import annotations

from pathlib import Path

from medfed.datasets import pictures, reading
from medfed.datasets.base import Dataset
from medfed.datasets.folder import Folder
from medfed.datasets.prostate import Prostate
from medfed.errors import UserError

MASK_NAMES = ("segmentation", "mask", "seg", "label", "labels")
IMAGE_NAMES = ("t2", "t2w", "image", "img")


def recognise(root: Path, kind: str | None = None) -> Dataset:
    """The dataset that a folder looks like.

    Args:
        root: an existing folder.
        kind: "prostate" or "folder", where it is known.

    Raises:
        UserError: if there is no such folder.
    """
    if not root.is_dir():
        raise UserError(f"{root}: is no folder; expected one with a folder for each site")
    prostate = Prostate(root=str(root))
    folders = prostate.find_sites() if kind != "folder" else {}
    if kind == "prostate" or any(prostate.find_cases(site, folder)[0] for site, folder in folders.items()):
        return prostate
    names = _case_folder_names(root)
    plain = Folder(root=str(root), **names)
    return Folder(root=str(root), image_channels=_channels(plain), **names)


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
