"""Find the images and masks of a site, however its folders are arranged, or ask which folder holds what.

The arrangements are: a folder of images with a folder of masks (`images` and `masks`, nnU-Net's `imagesTr` and
`labelsTr`), images and masks in the same folder, and one folder per case or per part. Only names are read. What could
mean two things is never guessed: the result is then a problem that names both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from medfed.datasets import folder_questions
from medfed.datasets.datalists import read_msd, table_of_classes
from medfed.datasets.file_names import (
    Listing,
    composed,
    count_images,
    list_folder,
    outline_files,
    stem_of,
    unsupported_problems,
)
from medfed.datasets.folder_questions import which_holds
from medfed.datasets.name_pairs import pair_names
from medfed.datasets.name_statements import topic_of
from medfed.datasets.pairing import Found, NameSettings, folders_of_masks, pair_in_one_folder, pair_two_folders
from medfed.datasets.part_names import is_part
from medfed.datasets.reading import suffix

IMAGE_FOLDERS = ("images", "imgs", "img", "image", "imagestr")  # usual names, lower case
MASK_FOLDERS = (
    "masks",
    "mask",
    "labels",
    "label",
    "labelstr",
    "seg",
    "segs",
    "segmentation",
    "segmentations",
    "gt",
    "groundtruth",
    "annotation",
    "annotations",
)
_SEPARATORS = str.maketrans("", "", "_- ")
MAX_CASE_DEPTH = 3  # folders of cases or parts inside each other


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
    """Find the pairs in a folder, which lies `depth` folders inside that of the site, and in the folders inside it.

    A case has the name of the image file, or of the folder if this folder holds a single pair. Names of inner folders
    come before it, as in "train/a".
    """
    found = _find_pairs(folder, names, depth)
    if depth == 0 and not found.pairs and not found.problems:
        found.problems = _unsupported_inside(folder, names)
    return found


def _find_pairs(folder: Path, names: NameSettings, depth: int) -> Found:
    """Find the pairs of image and mask in a folder that lies `depth` levels inside the folder of a site."""
    listing = list_folder(folder, names.ignored_names)
    roles = find_roles(listing, names)
    if found := read_msd(folder, names.ignored_names, names.links_inside):
        return found
    is_case = depth > 0 and not is_part(folder.name)
    if roles.images and roles.masks and not roles.question:
        return pair_folders(roles.images, roles.masks, names, is_case)
    in_folder = pair_in_one_folder(folder, names, is_case) if listing.files else None
    if in_folder and (not roles or (in_folder.pairs and not in_folder.problems)):
        in_folder.problems += _folders_beside_files(listing, names)
        return in_folder
    if roles.question:
        return Found({}, [f"{folder}: {roles.question}"])
    if roles.masks:
        return pair_folders(folder, roles.masks, names, is_case)
    if not roles and (both := folder_questions.folders_by_files(listing, names)):
        return pair_folders(*both, names)
    if not listing.folders or depth == MAX_CASE_DEPTH:
        return Found()
    return _pair_case_folders(listing, names, depth)


def find_roles(listing: Listing, names: NameSettings) -> Roles:
    """Decide by their names which of the folders in a folder hold the images and the masks."""
    images = _with_role(listing, names.image_folders, IMAGE_FOLDERS, names)
    masks = _with_role(listing, names.mask_folders, MASK_FOLDERS, names)
    if not images and not masks:
        return Roles()
    for role, folders in (("images", images), ("masks", masks)):
        if len(folders) > 1:
            return Roles(question=which_holds(role, folders, folders[0]))
    if images and masks:
        return Roles(images[0], masks[0], _second_masks(listing, images[0], masks[0], names))
    if masks and listing.files:  # the images lie beside the folder of the masks
        return Roles(None, masks[0])
    missing = "masks" if images else "images"
    (folder,) = images or masks
    others = [path for path in listing.folders.values() if path != folder and count_images(path, names.ignored_names)]
    if not others:
        found = f"found only the folder {folder.name}/; expected a folder of {missing} too"
        return Roles(
            question=f"{found}; add it, or set data.{missing[:-1]}_folders if it has an unusual name"
            + folder_questions.leave_out_part(listing.folder)
            + table_of_classes(listing.folder)
            + folder_questions.OR_TABLE
        )
    unreadable = "" if count_images(folder, names.ignored_names) else outline_files(folder)
    note = f" ({folder.name}/ holds {unreadable}, which are no masks; masks are image files)" if unreadable else ""
    if not unreadable and not count_images(folder, names.ignored_names):
        note = f" ({folder.name}/ holds no image; remove it if the images have classes and no masks)"
    in_order = sorted((folder, *others), key=lambda path: path.name)
    return Roles(question=which_holds(missing, in_order, others[0]) + note + folder_questions.OR_TABLE)


def _second_masks(listing: Listing, images: Path, masks: Path, names: NameSettings) -> str:
    """Return the question which folder holds the masks, if another one also has a file for each image; "" if not.

    Data sets of the eye have a folder `mask` with the field of view beside the folder with the structures. Folders such
    as `overlays` and `predictions` hold no masks.
    """
    others = [
        path
        for path in listing.folders.values()
        if path not in (images, masks) and not folder_questions.is_derived(path.name)
    ]
    if names.mask_folders or not others or not (n_images := count_images(images, names.ignored_names)):
        return ""
    for other in others:
        content = list_folder(other, names.ignored_names)
        files = (*content.files, *content.unsupported)
        if len(files) >= n_images:
            is_second = len(pair_names(_stems(list_folder(images, names.ignored_names).files), _stems(files)).image_of)
        else:
            is_second = count_images(other, names.ignored_names) and len(pair_folders(images, other, names).pairs)
        if is_second == n_images:
            endings = sorted({path.suffix for path in content.unsupported})
            unreadable = f" ({' and '.join(endings)} files in {other.name}/ cannot be read; convert them)"
            return which_holds("masks", (masks, other), other) + (unreadable if endings else "")
    return ""


def _stems(files: Sequence[Path]) -> list[str]:
    """The names of the files without their endings, each once."""
    return list(dict.fromkeys(stem_of(path) if suffix(path) else composed(path.stem) for path in files))


def _unsupported_inside(folder: Path, names: NameSettings) -> list[str]:
    """Return the problems with the formats of the files in a folder, or in the folders inside it."""
    listing = list_folder(folder, names.ignored_names)
    inner = [problem for path in listing.folders.values() for problem in _unsupported_inside(path, names)]
    return [*unsupported_problems(listing, suggest_keys=True), *inner]


def _folders_beside_files(listing: Listing, names: NameSettings) -> list[str]:
    """Return one problem for each folder with images that lies beside the images and masks of a site or case."""
    return [
        f"{path}: this folder holds image files and lies beside the image files of {listing.folder}; expected either "
        f"files or folders; move the images into one folder, or leave this folder out with data.ignored_names: "
        f"[{path.name}]"
        for path in listing.folders.values()
        if count_images(path, names.ignored_names)
    ]


def _key(name: str) -> str:
    """Return the name of a folder in lower case and without separators: "groundtruth" for "Ground Truth"."""
    return composed(name).casefold().translate(_SEPARATORS)


def _is_listed(name: str, words: Sequence[str]) -> bool:
    """Return whether the name of a folder is one of the listed names, in which a `*` stands for any characters."""
    return any(fnmatch(_key(name), _key(word)) for word in words)


def _with_role(listing: Listing, listed: Sequence[str], usual: Sequence[str], names: NameSettings) -> list[Path]:
    """Return the folders that the user has listed or that have a usual name; of several, those with image files."""
    for words in (listed, usual):
        folders = [path for name, path in listing.folders.items() if _is_listed(name, words)]
        if len(folders) > 1:
            folders = [path for path in folders if count_images(path, names.ignored_names)] or folders[:1]
        if folders:
            return folders
    return []


def pair_folders(images: Path, masks: Path, names: NameSettings, is_case: bool = False) -> Found:
    """Pair a folder of images with one of masks; if both contain only folders, pair these by their names.

    If only one of the two contains files, the folder that the user has set inside the other one is taken, or its only
    folder: `images/a.png` with `masks/reader1/a.png`. `is_case` as in `pairing.pair_in_one_folder`.
    """
    inner_images, inner_masks = (list_folder(folder, names.ignored_names) for folder in (images, masks))
    partners = _partners(list(inner_images.folders), list(inner_masks.folders))
    if inner_masks.files or inner_images.files or not partners:
        if found := folders_of_masks(inner_images, inner_masks, names):
            return found
        if not inner_masks.files and (inside := _inside(inner_masks, names.mask_folders, inner_images, names)):
            if len(inside) == 1:
                return pair_folders(images, inside[0], names, is_case)
            question = folder_questions.which_inside(masks, "masks", inside, names.mask_folders)
            return Found({}, [question])
        if not inner_images.files and (inside := _inside(inner_images, names.image_folders, inner_masks, names)):
            if len(inside) == 1:
                return pair_folders(inside[0], masks, names, is_case)
            question = folder_questions.which_inside(images, "images", inside, names.image_folders)
            return Found({}, [question])
        if inner_images.files and not inner_masks.files and not inner_masks.unsupported:
            return Found({}, [folder_questions.no_masks(inner_images, inner_masks)])
    if inner_images.files or inner_masks.files or not (inner_images.folders and inner_masks.folders):
        return pair_two_folders(images, masks, names, is_case)
    found = Found()
    for name, path in inner_images.folders.items():
        partner = inner_masks.folders.get(partners.get(name, ""))
        if partner is None:
            hint = folder_questions.leave_out_part(path)
            found.problems.append(f"{path}: there is no folder {name} in {masks}; add it, or remove this folder{hint}")
            continue
        found.add(name, pair_folders(path, partner, names))
    found.problems += [
        f"{path}: there is no folder {path.name} in {images}; add it, or remove this folder"
        for name, path in inner_masks.folders.items()
        if name not in partners.values()
    ]
    return _name_patients(found, in_part=is_part(images.name) or is_part(images.parent.name))


def _inside(listing: Listing, listed: Sequence[str], other: Listing, names: NameSettings) -> list[Path]:
    """Return the folders inside a folder of one role that may fit the content of the folder of the other role.

    A folder with one of the names that the user has `listed` for its role is the only one. `other` holds files, or
    folders of which one has the same name.
    """
    fitting = [
        path
        for path in listing.folders.values()
        if count_images(path, names.ignored_names)
        and (other.files or set(other.folders) & set(list_folder(path, names.ignored_names).folders))
    ]
    return [path for path in fitting if _is_listed(path.name, listed)] or fitting


def _partners(images: Sequence[str], masks: Sequence[str]) -> dict[str, str]:
    """Return for each folder of images the folder of masks with its name.

    Upper and lower case, and Unicode forms, are not distinguished if only one folder of images and one of masks are
    left for a name.
    """
    partners = {name: name for name in images if name in masks}
    left: dict[str, tuple[list[str], list[str]]] = {}
    for index, folders in enumerate((images, masks)):
        for name in folders:
            if name not in partners:
                left.setdefault(composed(name).casefold(), ([], []))[index].append(name)
    return partners | {first[0]: second[0] for first, second in left.values() if len(first) == len(second) == 1}


def _pair_case_folders(listing: Listing, names: NameSettings, depth: int) -> Found:
    """Find the pairs in each folder of a folder without image files: one folder per case, per patient or per part."""
    found, inner_problems = Found(), False
    for name, path in listing.folders.items():
        inner = find_pairs(path, names, depth + 1)
        inner_problems |= bool(inner.problems)
        if len(inner.pairs) == 1 and not inner.problems and not is_part(name):
            case = inner.only_case(name)
            found.pairs |= case.pairs
            found.more_masks |= case.more_masks
        else:
            found.add(name, inner)
    if found.pairs or not inner_problems:
        return _name_patients(found, in_part=depth > 0 and is_part(listing.folder.name))
    folders = [path for path in listing.folders.values() if list_folder(path, names.ignored_names).files]
    holders = [path for path in listing.folders.values() if count_images(path, names.ignored_names)]
    if len(holders) > 1 and len(folders) < 2 and any(folder_questions.has_mask_word(path.name) for path in holders):
        folders = holders
    if len(folders) < 2 or any(_may_be_case(path, names) for path in folders):
        return found
    if question := folder_questions.folder_in_cases(listing, folders, names):
        return Found({}, [question])
    return Found({}, [folder_questions.which_hold_both(listing, folders, names)])


def _may_be_case(folder: Path, names: NameSettings) -> bool:
    """Return whether a folder holds images and also masks, or a folder of masks, by their names."""
    listing = list_folder(folder, names.ignored_names)
    if find_roles(listing, names).masks:
        return True
    return folder_questions.holds_a_mask(folder) and not folder_questions.has_only_masks(folder)


def _name_patients(found: Found, in_part: bool) -> Found:
    """Take each of several inner folders as a patient, unless it is a part such as "train"; return the pairs.

    In a part, the only inner folder is a patient, too: the other parts may have several. If the folders are sides or
    sequences, such as "left" and "right", the equal names in them are the patients. Folders of findings, such as
    "benign" and "malignant", are no patients.
    """
    folders = {name.partition("/")[0] for name in found.pairs}
    if (len(folders) < 2 and not in_part) or any(map(is_part, folders)):
        return found
    topics = set(map(topic_of, folders))
    if len(topics) > 1 or topics == {""}:
        found.patients = {name: name.partition("/")[0] for name in found.pairs}
    elif topics != {"finding"}:
        names_in = {
            folder: {name.partition("/")[2] for name in found.pairs if name.startswith(f"{folder}/")}
            for folder in folders
        }
        if 2 * len(set.intersection(*names_in.values())) >= min(map(len, names_in.values())):
            found.patients = {name: name.partition("/")[2] for name in found.pairs} | found.patients
    return found
