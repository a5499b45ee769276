"""Find out whether the folders of the sites hold folders of classes, and not images and masks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from medfed.core.errors import UserError
from medfed.datasets import datalists, file_names, image_files, reading
from medfed.datasets.folder_questions import has_mask_word, holds_a_mask, share_names
from medfed.datasets.name_pairs import pair_names
from medfed.datasets.pairing import NameSettings, guess_image_and_mask_names, pair_in_one_folder
from medfed.datasets.part_names import are_years, is_part
from medfed.datasets.site_search import IMAGE_FOLDERS, MASK_FOLDERS, find_roles

EXTREME_LEVELS = 16  # of 255, by which nearly black and nearly white differ from black and white
MIN_MASK_RATIO = 0.95  # pixels that are nearly black or nearly white in a mask that was stored as JPEG
MAX_IMAGE_RATIO = 0.5  # the same in a photograph
N_MASKS = 5  # images that must look like masks
N_PHOTOGRAPHS = 3  # images of each folder that must be photographs
MIN_TONES = 64  # different values of a photograph
N_TONES, MIN_OTHER_TONES = 4, 0.05  # pixels of a photograph that have none of its 4 most frequent of 16 tones


def class_key(name: str) -> str:
    """Return a name in which upper and lower case, and Unicode forms, make no difference: "dog" for "DOG"."""
    return file_names.composed(name).casefold()


def class_holders(site: Path) -> list[Path]:
    """Return the folders that hold the folders of the classes: that of the site, or those in it such as "train".

    The latter are taken if all folders of the site are called as parts of a split, or are years.
    """
    folders = file_names.list_folder(site).folders
    are_parts = bool(folders) and (all(map(is_part, folders)) or are_years(folders))
    return list(folders.values()) if are_parts else [site]


def holds_classes(root: Path) -> bool:
    """Return whether a folder has the layout ROOT/SITE/CLASS/NAME.png or ROOT/SITE/train/CLASS/NAME.png.

    A folder that looks like one with masks does not have it: if a class is called "images" or "gt", for example; if a
    class folder contains an image with its mask; if two class folders of a site contain files of the same names; if the
    images of only some class folders are two-valued, as masks are (or nearly, as JPEG files are, beside photographs of
    the same site); or if a table in `root` lists images and masks. Class folders of two sites may contain files of the
    same names if they hold photographs, no name says that it is a mask, and names within a site are no pairs.
    """
    holders = [path for site in file_names.subfolders(root).values() for path in class_holders(site)]
    in_holders = [[path for path in sorted(holder.iterdir()) if not _is_document(path)] for holder in holders]
    inside = [path for folders in in_holders for path in folders]
    names = {class_key(path.name) for path in inside}
    if len({path.name for path in inside}) < 2 or names & {*IMAGE_FOLDERS, *MASK_FOLDERS} or any(map(is_part, names)):
        return False
    if not all(path.is_dir() for path in inside) or any(map(guess_image_and_mask_names, inside)):
        return False
    if find_roles(file_names.list_folder(root), NameSettings()) or any(map(share_names, in_holders)):
        return False
    if share_names(inside) and (any(map(_are_paired, in_holders)) or not all(map(_holds_photographs, inside))):
        return False
    if any(pair_in_one_folder(path, NameSettings()).pairs for path in inside):
        return False
    if len({_has_two_values(path) for path in inside} - {None}) > 1 or _some_are_jpeg_masks(inside):
        return False
    if any(columns >= {"image", "mask"} for columns in datalists.tables(root).values()):
        return False
    files = [path for folder in inside for path in folder.iterdir()]
    return any(map(reading.is_2d_image_file, files)) and not any(path.is_dir() for path in files)


def _is_document(path: Path) -> bool:
    """Return whether a file is hidden, or is a document such as a text file, which holds no image."""
    is_text = path.is_file() and path.name.lower().endswith(file_names.NON_IMAGE_SUFFIXES)
    return is_text or file_names.is_ignored(path)


def _are_paired(folders: Sequence[Path]) -> bool:
    """Return whether names in two folders begin alike and are pairs, as of images and masks: `p0_A` and `p0_B`.

    Folders of which all files have the name of their folder, such as `benign/benign_0.png`, are left out.
    """
    stems = [[file_names.stem_of(path) for path in file_names.list_folder(folder).files] for folder in folders]
    other = [
        names
        for folder, names in zip(folders, stems)
        if not all(class_key(folder.name) in class_key(name) for name in names)
    ]
    for index, first in enumerate(other):
        for second in other[:index]:
            pairs = pair_names(first, second).image_of.items()
            n_alike = sum(any(map(str.isalnum, os.path.commonprefix(pair))) for pair in pairs)
            if 2 * n_alike >= min(len(first), len(second)) > 0:
                return True
    return False


def _holds_photographs(folder: Path) -> bool:
    """Return whether the first images in a folder are photographs, and neither it nor a file is called as a mask."""
    images = list(_first_images(folder, N_PHOTOGRAPHS))
    return all(map(_is_photograph, images)) and not has_mask_word(folder.name) and not holds_a_mask(folder)


def _is_photograph(pixels: np.ndarray) -> bool:
    """Return whether an image has many tones. A mask has few, and if it was stored as JPEG, few at its edges only."""
    grey = pixels.mean(0)
    counts = np.sort(np.histogram(grey, 16, (0, 256))[0])
    return len(np.unique(grey)) >= MIN_TONES and counts[:-N_TONES].sum() >= MIN_OTHER_TONES * grey.size


def _has_two_values(folder: Path) -> bool | None:
    """Return whether the first image in a folder has at most three values, as masks have; None if unreadable."""
    return next((len(np.unique(pixels)) <= 3 for pixels in _first_images(folder, 1)), None)


def _some_are_jpeg_masks(folders: Sequence[Path]) -> bool:
    """Return whether a folder of a site holds masks stored as JPEG, and another folder of the same site photographs.

    Nearly all pixels of such a mask, but not all, are nearly black or nearly white. Some drawings on white are so, too;
    therefore five images are looked at, and photographs in the same site are needed.
    """
    first = {path: next((_extreme_ratio(pixels) for pixels in _first_images(path, 1)), None) for path in folders}
    photographs = {path.parent for path, ratio in first.items() if ratio is not None and ratio < MAX_IMAGE_RATIO}
    return any(
        all(_extreme_ratio(pixels) > MIN_MASK_RATIO for pixels in _first_images(path, N_MASKS))
        for path, ratio in first.items()
        if ratio is not None and ratio > MIN_MASK_RATIO and path.parent in photographs
    )


def _first_images(folder: Path, n: int) -> Iterator[np.ndarray]:
    """Yield the values of the first n images in a folder, (C, H, W) in [0, 255]; it ends at a damaged file."""
    with suppress(UserError):
        for path in file_names.list_folder(folder).files[:n]:
            yield image_files.read_image_file(path, None, [])


def _extreme_ratio(pixels: np.ndarray) -> float:
    """Return the part of an image that is nearly black or nearly white; 0 if it has only one of the two."""
    black, white = np.mean(pixels <= EXTREME_LEVELS), np.mean(pixels >= 255 - EXTREME_LEVELS)
    return float(black + white) if black and white else 0.0
