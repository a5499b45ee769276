"""Describe the folders of a site, and ask which of them holds the images and which the masks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from medfed.datasets.file_names import Listing, count_images, list_folder, outline_files, stem_of
from medfed.datasets.name_pairs import mask_base, pair_names, split_names
from medfed.datasets.pairing import NameSettings
from medfed.datasets.part_names import is_part

_MASK_WORD = re.compile(r"mask|label|segment|ground.?truth|annot|(?<![a-z])(gt|seg)(?![a-z])", re.IGNORECASE)
_IMAGE_WORD = re.compile(r"image|img|original|scan|photo|(?<![a-z])raw(?![a-z])", re.IGNORECASE)
_DERIVED = re.compile(
    r"overlay|predict|(?<![a-z])preds?(?![a-z])|preview|thumb|visuali|heat.?map|inference|blend|"
    "figure|plot|result|output",
    re.IGNORECASE,
)
OR_TABLE = "; or list the images with their masks or classes in a table (data.datalist)"


def describe(folders: Mapping[str, Path], names: NameSettings) -> str:
    """Return what folders contain, such as "a/ (40 images) and b/ (40 images)"; at most four are listed."""
    counts = {name: count_images(path, names.ignored_names) for name, path in folders.items()}
    listed = [f"{name}/ ({n} image{'' if n == 1 else 's'})" for name, n in list(counts.items())[:4]]
    if len(counts) > 4:
        return f"{', '.join(listed[:3])} and {len(counts) - 3} more folders"
    return " and ".join(listed)


def which_holds(role: str, folders: Iterable[Path], example: Path) -> str:
    """Ask which of several folders holds the images or the masks (`role`), with the setting that answers it."""
    listed = " and ".join(f"{path.name}/" for path in folders)
    return f"found {listed}; which holds the {role}? set data.{role[:-1]}_folders, such as [{example.name}]"


def which_hold_both(listing: Listing, folders: Sequence[Path], names: NameSettings) -> str:
    """Ask which of at least two folders with image files holds the images and which the masks."""

    def rank(path: Path) -> int:
        """Low for a folder that probably holds the images, high for one that holds the masks."""
        return bool(_MASK_WORD.search(path.name)) - bool(_IMAGE_WORD.search(path.name)) + has_only_masks(path)

    images = min(folders, key=rank)
    masks = max((path for path in folders if path != images), key=rank)
    base = _MASK_WORD.split(masks.name)[0].strip("_-. ").casefold()  # "tumour" for "tumour_masks"
    images = next((path for path in folders if path != masks and path.name.casefold() == base), images)
    by_name = {path.name: path for path in listing.folders.values() if count_images(path, names.ignored_names)}
    same = " with files of the same names" if share_names(folders) else ""
    examples = " and ".join(f"[{_pattern(path, listing.folder)}]" for path in (images, masks))
    return (
        f"{listing.folder}: found {describe(by_name, names)}{same}; which holds the images and which the masks? set "
        f"data.image_folders and data.mask_folders, such as {examples}{fixed_names(folders)}; if they are classes, "
        f"use the dataset folder_classes (check it with --dataset folder_classes){OR_TABLE}"
    )


def folder_in_cases(listing: Listing, cases: Sequence[Path], names: NameSettings) -> str:
    """Ask whether the only folder inside each of several folders with image files (`cases`) holds the masks.

    "" if one of them holds no or several other folders with images, or one with another name.
    """
    inner = [
        [
            name
            for name, path in list_folder(case, names.ignored_names).folders.items()
            if count_images(path, names.ignored_names)
        ]
        for case in cases
    ]
    if len(inner[0]) != 1 or any(folders != inner[0] for folders in inner):
        return ""
    image = list_folder(cases[0], names.ignored_names).files[0].name
    return (
        f"{listing.folder}: found {describe(listing.folders, names)}, each with image files such as {image} and a "
        f"folder {inner[0][0]}/; which holds the masks? if it is this folder, set data.mask_folders: "
        f"[{inner[0][0]}]{OR_TABLE}"
    )


def which_inside(folder: Path, role: str, inner: Sequence[Path], listed: Sequence[str]) -> str:
    """Ask which folder inside a folder of "images" or "masks" (`role`) is meant; `listed` are the names already set for
    it."""
    merge = "; if each shows another structure, merge them into one file for each image, with the values 1, 2, ... "
    return (
        f"{folder}: {which_holds(role, inner, inner[0]).rpartition('[')[0]}[{', '.join((*listed, inner[0].name))}]"
        f"{merge + '(data.mask_values)' if role == 'masks' else ''}{OR_TABLE}"
    )


def no_masks(images: Listing, masks: Listing) -> str:
    """Return the problem that a folder of masks holds no image file."""
    documents = outline_files(masks.folder)
    found = f"found no image file, only {documents}" if documents else "found no image file"
    return (
        f"{masks.folder}: {found}; expected a mask for each of the {len(images.files)} images in {images.folder}; "
        + ("draw the outlines in these files into image files" if documents else "add the masks")
        + ", or set data.mask_folders if another folder holds the masks"
    )


def is_derived(name: str) -> bool:
    """Return whether a folder is called as one of drawings or predictions, which are neither images nor masks."""
    return bool(_DERIVED.search(name))


def leave_out_part(folder: Path) -> str:
    """Return the setting that leaves out a part such as "test" without masks, as a clause; "" for other folders."""
    if not is_part(folder.name):
        return ""
    return f"; if its masks are not public, or it is not needed, leave it out with data.ignored_names: [{folder.name}]"


def share_names(folders: Sequence[Path]) -> bool:
    """Return whether two of the folders have image files of the same names, at least half of those of the smaller one.

    A word such as `_mask` in a name does not count, and nnU-Net's ending `_0000` does not either.
    """
    stems = [{_plain(stem_of(path)) for path in list_folder(folder).files} for folder in folders]
    return any(
        len(first & second) * 2 >= min(len(first), len(second)) > 0
        for index, first in enumerate(stems)
        for second in stems[:index]
    )


def holds_a_mask(folder: Path) -> bool:
    """Return whether a folder has a file with the name of a mask; then it is more likely the folder of a case."""
    return bool(split_names([stem_of(path) for path in list_folder(folder).files])[1])


def has_only_masks(folder: Path) -> bool:
    """Return whether all image files in a folder have the name of a mask; False for a folder without image files."""
    stems = [stem_of(path) for path in list_folder(folder).files]
    return bool(stems) and len(split_names(stems)[1]) == len(stems)


def has_mask_word(name: str) -> bool:
    return bool(_MASK_WORD.search(name))


def sites_in_two_folders(names: Iterable[str]) -> tuple[str, str, str] | None:
    """Return the names of a site's two folders, of images and of masks, and their common part; None if there are none.

    These are `Nord_images`, `Nord_masks` and `Nord`, for example.
    """
    images: dict[str, tuple[str, str]] = {}
    masks: dict[str, str] = {}
    for name in names:
        for word, is_mask in ((_MASK_WORD, True), (_IMAGE_WORD, False)):
            if match := word.search(name):
                base = (name[: match.start()] + name[match.end() :].lstrip("sS")).strip("_-. ")
                if is_mask:
                    masks[base.casefold()] = name
                else:
                    images[base.casefold()] = name, base
                break
    return next(((name, masks[key], base) for key, (name, base) in images.items() if base and key in masks), None)


def has_word(name: str) -> bool:
    """Return whether the name of a folder contains a word for images or masks, such as `trainval-image`."""
    return bool(_MASK_WORD.search(name) or _IMAGE_WORD.search(name))


def folders_by_files(listing: Listing, names: NameSettings) -> tuple[Path, Path] | None:
    """Return the folder of images and that of masks if the names of the files in them leave no doubt.

    That is so if exactly two folders hold images, if all files in one of them have the name of a mask and none in the
    other has, and if every image has its mask: `Input/{a,b}.jpg` and `Truth/{a,b}_segmentation.png`.
    """
    holders = [path for path in listing.folders.values() if count_images(path, names.ignored_names)]
    if listing.files or len(holders) != 2 or sum(map(has_only_masks, holders)) != 1:
        return None
    images, masks = sorted(holders, key=has_only_masks)
    if holds_a_mask(images):
        return None
    stems = [[stem_of(path) for path in list_folder(folder, names.ignored_names).files] for folder in (images, masks)]
    is_complete = len(pair_names(*stems).image_of) == len(stems[0]) == len(stems[1]) > 0
    return (images, masks) if is_complete else None


def fixed_names(folders: Sequence[Path]) -> str:
    """Return the setting that helps if the folders are cases with files of the same two names; "" if they are not."""
    stems = [[stem_of(path) for path in list_folder(folder).files] for folder in folders]
    if len(stems[0]) != 2 or any(other != stems[0] for other in stems):
        return ""
    return (
        f"; if each folder is a case, set data.image_name and data.mask_name, such as {stems[0][0]} and {stems[0][1]}"
    )


def _plain(stem: str) -> str:
    """Return the name of a file without a word such as `_mask`, or without nnU-Net's number of the channel."""
    stem = (mask_base(stem) or stem).casefold()
    return stem[:-5] if stem[-5:-4] == "_" and stem[-4:].isdigit() else stem


def _pattern(folder: Path, parent: Path) -> str:
    """Return the name of a folder for a setting; with a `*` if it starts with the name of the folder of its case."""
    rest = folder.name.removeprefix(parent.name)
    return f'"*{rest}"' if rest != folder.name and rest[:1] in tuple("_-. ") else folder.name
