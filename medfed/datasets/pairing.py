"""Which image belongs to which mask, by the names of files and folders alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from medfed.datasets.reading import SUFFIXES, suffix

Pairs = dict[str, tuple[Path, Path]]  # by the name of the image, without its ending
Problems = list[str]
BESIDE = (".raw", ".zraw", ".txt", ".csv", ".tsv", ".json", ".yaml", ".md", ".xml", ".pdf", ".db", ".ini")  # no images
_MASK = re.compile(r"(.+)_(mask|segmentation|seg)", re.IGNORECASE)


def subfolder(folder: Path, name: str) -> Path | None:
    """The folder of this name, whatever its case; None if there is none."""
    return next((path for path in sorted(folder.iterdir()) if path.name.casefold() == name and path.is_dir()), None)


def two_folders(images: Path, masks: Path) -> tuple[Pairs, Problems]:
    """`images/NAME.ext` with `masks/NAME.ext2`; a mask may also be called NAME_mask, NAME_segmentation or NAME_seg.

    Where no image has a mask's name to the letter, one that differs in capitals alone is its image.
    """
    found_images, problems = _by_stem(images.iterdir())
    found_masks, more = _by_stem(masks.iterdir())
    folded = {stem.casefold(): stem for stem in found_images}
    renamed, again = {}, []
    for stem, path in found_masks.items():
        name = stem if stem in found_images else _image_name(stem) or stem
        name = name if name in found_images else folded.get(stem.casefold(), folded.get(name.casefold(), name))
        if name in renamed:
            again.append(f"{path}: is a second mask of {name}, beside {renamed[name].name}; remove one")
        renamed[name] = path
    return _match(found_images, renamed, [*problems, *more, *again])


def side_by_side(folder: Path) -> tuple[Pairs, Problems]:
    """`NAME.ext` with `NAME_mask.ext2` (or `_segmentation`, `_seg`, in any case) in the same folder."""
    found, problems = _by_stem(folder.iterdir())
    images = {stem: path for stem, path in found.items() if not _image_name(stem)}
    masks = {_image_name(stem): path for stem, path in found.items() if _image_name(stem)}
    return _match(images, masks, problems)


def case_folder(folder: Path, image_name: str, mask_name: str) -> tuple[Path | None, Path | None]:
    """The image and the mask in the folder of one case."""
    found, _ = _by_stem(folder.iterdir())
    return found.get(image_name), found.get(mask_name)


def case_folders(folder: Path, image_name: str, mask_name: str) -> tuple[Pairs, Problems]:
    """`CASE/image_name.ext` with `CASE/mask_name.ext2`, for every folder in this one."""
    pairs, problems = {}, []
    for case in sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != "."):
        image, mask = case_folder(case, image_name, mask_name)
        if image and mask:
            pairs[case.name] = image, mask
        else:
            problems.append(f"{case}: has no file called {mask_name if image else image_name}; expected one of each")
    return pairs, problems


def _by_stem(paths: Iterable[Path]) -> tuple[dict[str, Path], Problems]:
    """Images by their names without endings; a sentence for each that is there twice, or is of an unknown kind."""
    found: dict[str, Path] = {}
    problems = []
    for path in sorted(paths):
        ending = suffix(path)
        if path.name[0] == "." or path.name.lower().endswith(BESIDE) or path.is_dir():
            continue
        if ending is None:
            problems.append(f"{path}: is of an unknown kind; expected {', '.join(SUFFIXES)}; convert or remove it")
            continue
        stem = path.name[: -len(ending)]
        if stem in found:
            problems.append(f"{path}: is there twice, also as {found[stem].name}; remove one")
        found[stem] = path
    return found, problems


def _match(images: dict[str, Path], masks: dict[str, Path], problems: Problems) -> tuple[Pairs, Problems]:
    lonely = [f"{path}: has no mask; add one, or remove it" for name, path in images.items() if name not in masks]
    lonely += [f"{path}: has no image; add one, or remove it" for name, path in masks.items() if name not in images]
    return {name: (path, masks[name]) for name, path in images.items() if name in masks}, [*problems, *lonely]


def _image_name(stem: str) -> str | None:
    match = _MASK.fullmatch(stem)
    return match[1] if match else None
