"""Find the images and masks of a site, however its folders are arranged, or ask which folder holds what.

The arrangements are: a folder of images with a folder of masks (`images` and `masks`, nnU-Net's `imagesTr` and
`labelsTr`), images and masks in the same folder, and one folder per case or per part. Only the names of folders and
files are read. What could mean two things is never guessed: the result is then a problem that names both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from medfed.datasets.datalists import read_msd
from medfed.datasets.file_names import Listing, count_images, list_folder, stem_of
from medfed.datasets.name_pairs import mask_base, split_names
from medfed.datasets.pairing import Found, NameSettings, pair_in_one_folder, pair_two_folders

IMAGE_FOLDERS = ("images", "imgs", "img", "image", "imagestr")  # usual names, lower case
MASK_FOLDERS = (
    "masks", "mask", "labels", "label", "labelstr", "seg", "segs", "segmentation", "segmentations", "gt",
    "groundtruth", "annotation", "annotations",
)  # fmt: skip
PARTS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing")  # folders that are no patients
_SEPARATORS = str.maketrans("", "", "_- ")
MAX_DEPTH = 3  # folders of cases or parts inside each other


@dataclass(frozen=True)
class Roles:
    """Which folders inside a folder hold the images and which the masks.

    Args:
        images, masks: the folders; None if there is none.
        question: why this cannot be decided, and what to set, as the end of a sentence; "" if it is decided.
    """

    images: Path | None = None
    masks: Path | None = None
    question: str = ""

    def __bool__(self) -> bool:
        """Return whether at least one of the folders has a name that says what it holds."""
        return bool(self.images or self.masks or self.question)


def find_pairs(folder: Path, names: NameSettings, depth: int = 0) -> Found:
    """Find the pairs of image and mask in a folder and in the folders inside it.

    Args:
        folder: the folder of a site.
        names: the names that the user has set.
        depth: number of folders between the site's folder and this one.

    Returns:
        The pairs by the name of the case: the name of the image file, or of the folder if this folder holds a single
        pair. Names of inner folders come before it, as in "train/a".
    """
    listing = list_folder(folder, names.ignored_names)
    roles = find_roles(listing, names)
    if found := read_msd(folder, names.ignored_names):
        return found
    if roles.images and roles.masks and not roles.question:
        return pair_folders(roles.images, roles.masks, names)
    is_case = depth > 0 and not _is_part(folder.name)
    in_folder = pair_in_one_folder(folder, names, is_case) if listing.files else None
    if in_folder and (not roles or (in_folder.pairs and not in_folder.problems)):
        in_folder.problems += _folders_beside_files(listing, names)
        return in_folder
    if roles.question:
        return Found({}, [f"{folder}: {roles.question}"])
    if roles.masks:
        return pair_folders(folder, roles.masks, names)
    if not listing.folders or depth == MAX_DEPTH:
        return Found()
    return _pair_case_folders(listing, names, depth)


def find_roles(listing: Listing, names: NameSettings) -> Roles:
    """Decide by their names which of the folders in a folder hold the images and the masks.

    Args:
        listing: the content of the folder.
        names: the names that the user has set; they come before the usual names.
    """
    images = _with_role(listing, names.image_folders, IMAGE_FOLDERS, names)
    masks = _with_role(listing, names.mask_folders, MASK_FOLDERS, names)
    if not images and not masks:
        return Roles()
    for role, folders in (("images", images), ("masks", masks)):
        if len(folders) > 1:
            listed = " and ".join(f"{path.name}/" for path in folders)
            return Roles(question=f"found {listed}; which holds the {role}? set data.{role[:-1]}_folders, such as "
                                  f"[{folders[0].name}]")  # fmt: skip
    if images and masks:
        return Roles(images[0], masks[0], _second_masks(listing, images[0], masks[0], names))
    if masks and listing.files:  # the images lie beside the folder of the masks
        return Roles(None, masks[0])
    known, missing = ("images", "masks") if images else ("masks", "images")
    (folder,) = images or masks
    others = [path for path in listing.folders.values() if path != folder and count_images(path, names.ignored_names)]
    if not others:
        found = f"found only the folder {folder.name}/; expected a folder of {missing} too"
        return Roles(question=f"{found}; add it, or set data.{missing[:-1]}_folders if it has an unusual name")
    listed = " and ".join(sorted(f"{path.name}/" for path in (folder, *others)))
    return Roles(question=f"found {listed}; which holds the {missing}? set data.{missing[:-1]}_folders, such as "
                          f"[{others[0].name}]")  # fmt: skip


def describe(folders: Mapping[str, Path], names: NameSettings) -> str:
    """Return what folders contain, such as "a/ (40 images) and b/ (40 images)"; at most four are listed.

    Args:
        folders: the folders by name.
        names: the names that the user has set.
    """
    counts = {name: count_images(path, names.ignored_names) for name, path in folders.items()}
    listed = [f"{name}/ ({n} image{'' if n == 1 else 's'})" for name, n in list(counts.items())[:4]]
    if len(counts) > 4:
        return f"{', '.join(listed[:3])} and {len(counts) - 3} more folders"
    return " and ".join(listed)


def share_names(folders: Sequence[Path]) -> bool:
    """Return whether two of the folders have image files of the same names, at least half of those of the smaller one.

    A word such as `_mask` in a name does not count, and nnU-Net's ending `_0000` does not either.

    Args:
        folders: folders with image files.
    """
    stems = [{_plain(stem_of(path)) for path in list_folder(folder).files} for folder in folders]
    return any(
        len(first & second) * 2 >= min(len(first), len(second)) > 0
        for index, first in enumerate(stems) for second in stems[:index]
    )


def holds_a_mask(folder: Path) -> bool:
    """Return whether a folder has a file with the name of a mask; then it is more likely the folder of a case.

    Args:
        folder: a folder with image files.
    """
    return bool(split_names([stem_of(path) for path in list_folder(folder).files])[1])


def _is_part(name: str) -> bool:
    """Return whether a folder is called as a part of a split, such as "train"."""
    return name.casefold() in PARTS


def _second_masks(listing: Listing, images: Path, masks: Path, names: NameSettings) -> str:
    """Return the question which folder holds the masks, if another one also has a file for each image; "" if not.

    Data sets of the eye have a folder `mask` with the field of view beside the folder with the structures.
    """
    others = [path for path in listing.folders.values() if path not in (images, masks)]
    if names.mask_folders or not others or not (n_images := count_images(images, names.ignored_names)):
        return ""
    for other in others:
        if count_images(other, names.ignored_names) >= n_images == len(pair_folders(images, other, names).pairs):
            return (f"found {masks.name}/ and {other.name}/; which holds the masks? set data.mask_folders, such as "
                    f"[{other.name}]")  # fmt: skip
    return ""


def _folders_beside_files(listing: Listing, names: NameSettings) -> list[str]:
    """Return one problem for each folder with images that lies beside the images and masks of a site or case."""
    return [
        f"{path}: this folder holds image files and lies beside the image files of {listing.folder}; expected either "
        "files or folders; move the images into one folder, or leave this folder out with data.ignored_names"
        for path in listing.folders.values() if count_images(path, names.ignored_names)
    ]


def _plain(stem: str) -> str:
    """Return the name of a file without a word such as `_mask`, or without nnU-Net's number of the channel."""
    stem = (mask_base(stem) or stem).casefold()
    return stem[:-5] if stem[-5:-4] == "_" and stem[-4:].isdigit() else stem


def _key(name: str) -> str:
    """Return the name of a folder in lower case and without separators: "groundtruth" for "Ground Truth"."""
    return name.casefold().translate(_SEPARATORS)


def _with_role(
    listing: Listing, listed: Sequence[str], usual: Sequence[str], names: NameSettings
) -> list[Path]:
    """Return the folders that the user has listed or that have a usual name; of several, those with image files."""
    for words in (listed, usual):
        keys = set(map(_key, words))
        folders = [path for name, path in listing.folders.items() if _key(name) in keys]
        if len(folders) > 1:
            folders = [path for path in folders if count_images(path, names.ignored_names)] or folders[:1]
        if folders:
            return folders
    return []


def pair_folders(images: Path, masks: Path, names: NameSettings) -> Found:
    """Pair a folder of images with one of masks; if both contain only folders, pair these by their names.

    Args:
        images: folder of images, or of folders such as "train".
        masks: folder of masks, or of folders with the same names.
        names: the names that the user has set.
    """
    inner_images, inner_masks = (list_folder(folder, names.ignored_names) for folder in (images, masks))
    if inner_images.files or inner_masks.files or not (inner_images.folders and inner_masks.folders):
        return pair_two_folders(images, masks, names)
    found = Found()
    partners = _partners(list(inner_images.folders), list(inner_masks.folders))
    for name, path in inner_images.folders.items():
        partner = inner_masks.folders.get(partners.get(name, ""))
        if partner is None:
            found.problems.append(f"{path}: there is no folder {name} in {masks}; add it, or remove this folder")
            continue
        found.add(name, pair_folders(path, partner, names))
    found.problems += [
        f"{path}: there is no folder {path.name} in {images}; add it, or remove this folder"
        for name, path in inner_masks.folders.items() if name not in partners.values()
    ]
    return _name_patients(found, is_part=_is_part(images.name) or _is_part(images.parent.name))


def _partners(images: Sequence[str], masks: Sequence[str]) -> dict[str, str]:
    """Return for each folder of images the folder of masks with its name.

    Upper and lower case are not distinguished if only one folder of images and one of masks are left for a name.

    Args:
        images: names of the folders of images.
        masks: names of the folders of masks.
    """
    partners = {name: name for name in images if name in masks}
    left: dict[str, tuple[list[str], list[str]]] = {}
    for index, folders in enumerate((images, masks)):
        for name in folders:
            if name not in partners:
                left.setdefault(name.casefold(), ([], []))[index].append(name)
    return partners | {first[0]: second[0] for first, second in left.values() if len(first) == len(second) == 1}


def _pair_case_folders(listing: Listing, names: NameSettings, depth: int) -> Found:
    """Find the pairs in each folder of a folder without image files: one folder per case, per patient or per part."""
    found, inner_problems = Found(), False
    for name, path in listing.folders.items():
        inner = find_pairs(path, names, depth + 1)
        inner_problems |= bool(inner.problems)
        if len(inner.pairs) == 1 and not inner.problems and not _is_part(name):
            found.pairs[name] = next(iter(inner.pairs.values()))
        else:
            found.add(name, inner)
    if found.pairs or not inner_problems:
        return _name_patients(found, is_part=depth > 0 and _is_part(listing.folder.name))
    folders = [path for path in listing.folders.values() if list_folder(path, names.ignored_names).files]
    if len(folders) < 2 or any(map(holds_a_mask, folders)):
        return found
    examples = " and ".join(f"[{path.name}]" for path in folders[:2])
    same = " with files of the same names" if share_names(folders) else ""
    return Found({}, [
        f"{listing.folder}: found {describe(listing.folders, names)}{same}; which holds the images and which the "
        f"masks? set data.image_folders and data.mask_folders, such as {examples}; if they are classes, use the "
        "dataset folder_classes (check it with --dataset folder_classes)"
    ])  # fmt: skip


def _name_patients(found: Found, is_part: bool) -> Found:
    """Take each of several inner folders as a patient, unless it is a part such as "train"; return the pairs.

    In the folder of a part, the only inner folder is a patient, too: the other parts may have several.
    """
    folders = {name.partition("/")[0] for name in found.pairs}
    if (len(folders) > 1 or is_part) and not any(map(_is_part, folders)):
        found.patients = {name: name.partition("/")[0] for name in found.pairs}
    return found
