"""Find sites, pairs of image and mask, and patients by the names of folders and files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from medfed.core.errors import UserError
from medfed.datasets.reading import SUFFIXES, suffix

Pairs = dict[str, tuple[Path, Path]]  # (image, mask) by the name of the image without its suffix
Problems = list[str]  # one sentence each
# Files with these suffixes may lie in an image folder; they are ignored.
NON_IMAGE_SUFFIXES = (
    ".raw", ".zraw", ".txt", ".csv", ".tsv", ".json", ".yaml", ".md", ".xml", ".pdf", ".db", ".ini",
)  # fmt: skip
MASK_NAMES = ("segmentation", "mask", "seg", "label", "labels")  # usual names of the mask in a case folder, lower case
_IMAGE_NAMES = ("t2", "t2w", "image", "img")  # usual names of the image in a case folder, lower case
_MASK = re.compile(r"(.+)_(mask|segmentation|seg)", re.IGNORECASE)


def site_folders(root: Path, names: Mapping[str, Sequence[str]]) -> dict[str, Path]:
    """Find the folders of the sites of a published collection by their names.

    Upper and lower case in the names are not distinguished.

    Args:
        root: an existing folder.
        names: for each site, the possible names of its folder.

    Returns:
        Dictionary from the name of a site to its folder. Sites without a folder are missing.

    Raises:
        UserError: if two folders belong to the same site.
    """
    by_name: dict[str, list[Path]] = {}
    for path in sorted(root.iterdir()):
        by_name.setdefault(path.name.casefold(), []).extend([path] if path.is_dir() else [])
    by_site = {site: [path for name in folder_names for path in by_name.get(name.casefold(), [])]
               for site, folder_names in names.items()}  # fmt: skip
    for site, folders in by_site.items():
        if len(folders) > 1:
            both = " and ".join(map(str, folders))
            raise UserError(f"{both}: both folders are the site {site}; expected one folder; move one "
                            "of the folders elsewhere")
    return {site: folders[0] for site, folders in by_site.items() if folders}


def subfolders(folder: Path) -> dict[str, Path]:
    """Return the folders directly inside a folder, by name, in alphabetical order. Hidden folders are left out."""
    return {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and path.name[0] != "."}


def check_patient_pattern(pattern: str | None) -> None:
    """Check the regular expression that finds the patient's identifier in a file name (`extract_patient`).

    Args:
        pattern: the regular expression. The part of the file name that its first group (pair of parentheses) matches
            identifies the patient. None is always accepted.

    Raises:
        ValueError: if the regular expression is not valid or has no group.
    """
    if pattern is None:
        return
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"patient_pattern '{pattern}' is not a valid regular expression: {error}") from None
    if groups < 1:
        raise ValueError(
            f"patient_pattern '{pattern}' has no group; put parentheses around the part that identifies the patient"
        )


def extract_patient(name: str, pattern: str | None, path: Path, problems: list[str]) -> str:
    """Extract the patient's identifier from the name of an image with a regular expression (`data.patient_pattern`).

    Args:
        name: name of the image or of its case folder, without suffix.
        pattern: the regular expression. Its first group (pair of parentheses) matches the identifier. None extracts
            nothing.
        path: path of the image, for the error sentence.
        problems: if the pattern does not match, one sentence about this is appended to this list.

    Returns:
        The identifier; "" if `pattern` is None or does not match.
    """
    if pattern is None:
        return ""
    match = re.search(pattern, name)
    if not (match and match[1]):
        problems.append(
            f"{path}: data.patient_pattern '{pattern}' does not match the name '{name}'; correct the pattern or rename "
            "the file"
        )
        return ""
    return match[1]


def find_subfolder(folder: Path, name: str) -> Path | None:
    """Find a folder directly inside another folder. Upper and lower case in folder names are not distinguished.

    Args:
        folder: the folder to search.
        name: name of the folder to find, in lower case.

    Returns:
        The path of the folder; None if there is none.
    """
    return next((path for path in sorted(folder.iterdir()) if path.name.casefold() == name and path.is_dir()), None)


def pair_two_folders(images: Path, masks: Path) -> tuple[Pairs, Problems]:
    """Pair the images in one folder with the masks in another folder: `images/NAME.ext` with `masks/NAME.ext2`.

    Here NAME is any name, and ext and ext2 are supported suffixes. A mask may also be called NAME_mask,
    NAME_segmentation or NAME_seg. If no image has exactly the mask's name, a name that differs only in upper and lower
    case is accepted.

    Args:
        images: folder of the images.
        masks: folder of the masks.

    Returns:
        A dict and a list. The dict contains the paths (image, mask) by NAME. The list contains the problems: one
        sentence for each file that has no counterpart, exists twice or has an unsupported format.
    """
    images_by_stem, problems = _by_stem(images.iterdir())
    masks_by_stem, mask_problems = _by_stem(masks.iterdir())
    by_lower_case = {stem.casefold(): stem for stem in images_by_stem}
    mask_of_image: dict[str, Path] = {}
    duplicates = []
    for stem, path in masks_by_stem.items():
        name = stem if stem in images_by_stem else _image_name(stem) or stem
        if name not in images_by_stem:
            name = by_lower_case.get(stem.casefold(), by_lower_case.get(name.casefold(), name))
        if name in mask_of_image:
            other = mask_of_image[name].name
            duplicates.append(f"{path}: is a second mask of the image {name}; {other} is also one; remove one of them")
        mask_of_image[name] = path
    return _match(images_by_stem, mask_of_image, [*problems, *mask_problems, *duplicates])


def pair_in_one_folder(folder: Path) -> tuple[Pairs, Problems]:
    """Pair images and masks that are in the same folder: `NAME.ext` with `NAME_mask.ext2`.

    Here NAME is any name, and ext and ext2 are supported suffixes. A mask may also be called NAME_segmentation or
    NAME_seg. Upper and lower case in these endings are not distinguished.

    Args:
        folder: folder of the images and masks.

    Returns:
        A dict and a list. The dict contains the paths (image, mask) by NAME. The list contains the problems: one
        sentence for each file that has no counterpart, exists twice or has an unsupported format.
    """
    by_stem, problems = _by_stem(folder.iterdir())
    images = {stem: path for stem, path in by_stem.items() if not _image_name(stem)}
    masks = {name: path for stem, path in by_stem.items() if (name := _image_name(stem))}
    return _match(images, masks, problems)


def find_case_files(folder: Path, image_name: str, mask_name: str) -> tuple[Path | None, Path | None]:
    """Find the image and the mask in the folder of one case (one image of a patient with its mask).

    A file has one of the suffixes `.nii.gz`, `.nii`, `.mha`, `.mhd`, `.nrrd`, `.png`, `.jpg`, `.jpeg`, `.bmp`, `.tif`
    and `.tiff`, in upper or lower case. Other files are ignored.

    Args:
        folder: folder of the case.
        image_name: name of the image file, without suffix.
        mask_name: name of the mask file, without suffix.

    Returns:
        The paths (image, mask); None instead of the path of a file that does not exist.
    """
    by_stem, _ = _by_stem(folder.iterdir())
    return by_stem.get(image_name), by_stem.get(mask_name)


def pair_case_folders(folder: Path, image_name: str, mask_name: str) -> tuple[Pairs, Problems]:
    """Find the image and the mask in each case folder of a site.

    A site's folder contains one folder per case, such as `CASE1/t2.nii.gz` and `CASE1/segmentation.nii.gz`. The files
    have the same names in every case folder.

    Args:
        folder: folder of the site.
        image_name: name of the image file in each case folder, without suffix.
        mask_name: name of the mask file in each case folder, without suffix.

    Returns:
        A dict and a list. The dict contains the paths (image, mask) by the name of the case folder. The list contains
        the problems: one sentence for each case folder without image or mask.
    """
    pairs, problems = {}, []
    for case in sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != "."):
        image, mask = find_case_files(case, image_name, mask_name)
        if image and mask:
            pairs[case.name] = image, mask
        else:
            problems.append(
                f"{case}: the folder has no file named {mask_name if image else image_name}; expected an image and a "
                "mask; add the file, or remove the folder"
            )
    return pairs, problems


def guess_image_and_mask_names(folder: Path) -> tuple[str, str] | None:
    """Guess the image file and the mask file of a case, from the names of the files in its folder.

    A mask is found by a usual name, such as "segmentation" or "mask". If there are several other image files, the image
    is found by a usual name, too, such as "t2" or "image".

    Args:
        folder: folder of the case.

    Returns:
        The names of the image and the mask without suffixes. None if the folder does not contain exactly one such mask
        and exactly one such image.
    """
    endings = {path.name: suffix(path) for path in sorted(folder.iterdir()) if path.is_file()}
    stems = [name.removesuffix(ending) for name, ending in endings.items() if ending and name.endswith(ending)]
    masks = [stem for stem in stems if stem.lower() in MASK_NAMES]
    others = [stem for stem in stems if stem not in masks]
    images = [stem for stem in others if stem.lower() in _IMAGE_NAMES] or others
    return (images[0], masks[0]) if len(masks) == 1 and len(images) == 1 else None


def _by_stem(paths: Iterable[Path]) -> tuple[dict[str, Path], Problems]:
    """Return image files by their names without suffixes, and the problems.

    A file that exists twice with different suffixes or has an unsupported format gives a problem.
    """
    by_stem: dict[str, Path] = {}
    problems = []
    for path in sorted(paths):
        ending = suffix(path)
        if path.name[0] == "." or path.name.lower().endswith(NON_IMAGE_SUFFIXES) or path.is_dir():
            continue
        if ending is None:
            problems.append(
                f"{path}: this file format is not supported; expected {', '.join(SUFFIXES)}; convert or remove the file"
            )
            continue
        stem = path.name[: -len(ending)]
        if stem in by_stem:
            problems.append(f"{path}: another file has the same name: {by_stem[stem].name}; remove one of them")
        by_stem[stem] = path
    return by_stem, problems


def _match(images: dict[str, Path], masks: dict[str, Path], problems: Problems) -> tuple[Pairs, Problems]:
    """Pair images and masks of the same name; every file without a counterpart gives a problem."""
    unpaired = [
        f"{path}: this image has no mask; add the mask, or remove the image"
        for name, path in images.items() if name not in masks
    ]
    unpaired += [
        f"{path}: this mask has no image; add the image, or remove the mask"
        for name, path in masks.items() if name not in images
    ]
    return {name: (path, masks[name]) for name, path in images.items() if name in masks}, [*problems, *unpaired]


def _image_name(stem: str) -> str | None:
    """Return the name of the image that a mask called `stem` belongs to; None if `stem` has no mask suffix."""
    match = _MASK.fullmatch(stem)
    return match[1] if match else None
