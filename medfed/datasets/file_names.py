"""What the names of files and folders say: the sites, which mask belongs to which image, and the patient."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from medfed.core.errors import UserError
from medfed.datasets.reading import SUFFIXES, suffix

Pairs = dict[str, tuple[Path, Path]]  # by the name of the image, without its ending
Problems = list[str]
BESIDE = (".raw", ".zraw", ".txt", ".csv", ".tsv", ".json", ".yaml", ".md", ".xml", ".pdf", ".db", ".ini")  # no images
MASK_NAMES = ("segmentation", "mask", "seg", "label", "labels")  # of the mask in a case folder, in lower case
_IMAGE_NAMES = ("t2", "t2w", "image", "img")  # of its image
_MASK = re.compile(r"(.+)_(mask|segmentation|seg)", re.IGNORECASE)


def site_folders(root: Path, names: Mapping[str, Sequence[str]]) -> dict[str, Path]:
    """The folder of every published site that is there, whatever its capitals.

    Args:
        root: an existing folder.
        names: for each site, the names that its folder has in copies of the collection.

    Raises:
        UserError: if two folders are the same site.
    """
    by_name: dict[str, list[Path]] = {}
    for path in sorted(root.iterdir()):
        by_name.setdefault(path.name.casefold(), []).extend([path] if path.is_dir() else [])
    by_site = {site: [path for name in known for path in by_name.get(name.casefold(), [])]
               for site, known in names.items()}  # fmt: skip
    for site, folders in by_site.items():
        if len(folders) > 1:
            both = " and ".join(map(str, folders))
            raise UserError(f"{both}: are both the site {site}; expected one folder, so move one away")
    return {site: folders[0] for site, folders in by_site.items() if folders}


def folders(folder: Path) -> dict[str, Path]:
    """The folders in a folder, by name and sorted; without hidden ones."""
    return {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and path.name[0] != "."}


def check_patient_pattern(pattern: str | None) -> None:
    """Raise ValueError unless it is a regular expression with a group around what names the patient, or None."""
    if pattern is None:
        return
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"patient_pattern '{pattern}' is no regular expression: {error}") from None
    if groups < 1:
        raise ValueError(f"patient_pattern '{pattern}' needs a (group) around what names the patient")


def patient_in(name: str, pattern: str | None, path: Path, problems: list[str]) -> str:
    """The patient that `data.patient_pattern` finds in the name of an image; "" without a pattern.

    Where the pattern finds none, a sentence about `path` is added to the problems.
    """
    if pattern is None:
        return ""
    match = re.search(pattern, name)
    if not (match and match[1]):
        problems.append(f"{path}: data.patient_pattern '{pattern}' finds no patient in '{name}'")
        return ""
    return match[1]


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
    renamed: dict[str, Path] = {}
    again = []
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
    masks = {name: path for stem, path in found.items() if (name := _image_name(stem))}
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


def image_and_mask_names(folder: Path) -> tuple[str, str] | None:
    """The names of the image and the mask in a case folder, without endings; None if it does not look like one."""
    endings = {path.name: suffix(path) for path in sorted(folder.iterdir()) if path.is_file()}
    stems = [name.removesuffix(ending) for name, ending in endings.items() if ending and name.endswith(ending)]
    masks = [stem for stem in stems if stem.lower() in MASK_NAMES]
    others = [stem for stem in stems if stem not in masks]
    images = [stem for stem in others if stem.lower() in _IMAGE_NAMES] or others
    return (images[0], masks[0]) if len(masks) == 1 and len(images) == 1 else None


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
