"""Pair the image files and the mask files of a folder, or of two folders, and say what has no counterpart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medfed.core.errors import UserError
from medfed.datasets import file_names, pairing_messages
from medfed.datasets.file_names import composed, stem_of
from medfed.datasets.name_pairs import pair_names, split_names
from medfed.datasets.name_statements import contradict
from medfed.datasets.reading import suffix

Problems = list[str]  # one sentence each
MASK_NAMES = ("segmentation", "mask", "seg", "label", "labels")  # usual names of the mask in a case folder, lower case
_IMAGE_NAMES = ("t2", "t2w", "image", "img")  # usual names of the image in a case folder, lower case


@dataclass(frozen=True)
class NameSettings:
    """How the folders and files of a dataset are named; the settings of the dataset `folder` of the same names.

    Args:
        image_folders, mask_folders: names of folders that come before the usual ones, such as "images" and "masks".
        image_name, mask_name: names of the image files and the mask files. A `*` stands for the name of the case. None
            finds the names out.
        ignored_names: patterns of the names of files and folders that are not read.
    """

    image_folders: tuple[str, ...] = ()
    mask_folders: tuple[str, ...] = ()
    image_name: str | None = None
    mask_name: str | None = None
    ignored_names: tuple[str, ...] = ()


@dataclass
class Found:
    """The pairs of image and mask in a folder.

    Args:
        pairs: (image, mask) by the name of the case, which is the name of the image without its suffix.
        problems: one sentence for each file that has no counterpart, exists twice or has an unsupported format.
        patients: identifier of the patient by the name of the case, where the folder of the case says it.
    """

    pairs: dict[str, tuple[Path, Path]] = field(default_factory=dict)
    problems: Problems = field(default_factory=list)
    patients: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, inner: Found) -> None:
        """Add the pairs of an inner folder; the name of this folder comes before the names of its cases."""
        for case, pair in inner.pairs.items():
            self.pairs[f"{name}/{case}"] = pair
        self.problems += inner.problems
        self.patients.update({f"{name}/{case}": patient for case, patient in inner.patients.items()})


def pair_two_folders(
    images: Path, masks: Path, names: NameSettings | None = None, is_case: bool = False
) -> Found:
    """Pair the images in one folder with the masks in another folder: `images/NAME.ext` with `masks/NAME.ext2`.

    Here NAME is any name, and ext and ext2 are supported suffixes. A mask may also be called NAME_mask,
    NAME_segmentation or NAME_seg, for example. If the names are not equal, they are paired by a rule or by their
    numbers (`name_pairs.pair_names`).

    Args:
        images: folder of the images.
        masks: folder of the masks.
        names: the patterns of the file names. None finds them out, and no message recommends a setting.
        is_case: whether the folders may belong to a single case, as for `pair_in_one_folder`.
    """
    suggest_keys = names is not None
    names = names or NameSettings()
    by_name, problems = [], list[str]()
    for folder, pattern in ((images, names.image_name), (masks, names.mask_name)):
        listing = file_names.list_folder(folder, names.ignored_names)
        files, duplicates = _by_name(listing.files, pattern)
        by_name.append(files)
        problems += [*file_names.unsupported_problems(listing, suggest_keys), *duplicates]
    if is_case and not problems and (found := _pair_only_case(by_name[0], by_name[1])):
        return found
    return pair_files(by_name[0], by_name[1], problems, images, masks, suggest_keys)


def pair_in_one_folder(folder: Path, names: NameSettings, is_case: bool = False) -> Found:
    """Pair images and masks that are in the same folder: `NAME.ext` with `NAME_mask.ext2`.

    Here NAME is any name, and ext and ext2 are supported suffixes. A mask is recognised by a word at the end or at the
    start of its name, such as NAME_segmentation, NAME_label or mask_NAME.

    Args:
        folder: folder of the images and masks.
        names: the patterns of the file names.
        is_case: whether the folder may belong to a single case. If it does, its only image and its only mask need no
            similar names, but their names must not contradict each other (`name_statements.contradict`).
    """
    listing = file_names.list_folder(folder, names.ignored_names)
    images, masks = _split_files(listing.files, names)
    if pairs_of_endings := pairing_messages.same_name_twice(images, masks):
        return Found({}, [pairs_of_endings])
    images_by_name, problems = _by_name(images, names.image_name)
    masks_by_name, mask_problems = _by_name(masks, names.mask_name)
    problems = [*file_names.unsupported_problems(listing, True), *problems, *mask_problems]
    if is_case and not problems and (found := _pair_only_case(images_by_name, masks_by_name)):
        return found
    if len(images_by_name) > 1 and not masks_by_name and not problems:
        return Found({}, [pairing_messages.no_mask_word(folder, images_by_name)])
    return pair_files(images_by_name, masks_by_name, problems, folder, folder, suggest_keys=True)


def find_case_files(
    folder: Path, image_name: str, mask_name: str, ignored_names: Sequence[str] = ()
) -> tuple[Path | None, Path | None]:
    """Find the image and the mask in the folder of one case (one image of a patient with its mask).

    A file has one of the suffixes `.nii.gz`, `.nii`, `.mha`, `.mhd`, `.nrrd`, `.png`, `.jpg`, `.jpeg`, `.bmp`, `.tif`
    and `.tiff`. Upper and lower case are not distinguished, neither in names nor in suffixes. Other files are ignored.

    Args:
        folder: folder of the case.
        image_name: name of the image file, without suffix, or with the suffix if several files have this name.
        mask_name: name of the mask file, like `image_name`.
        ignored_names: patterns of names that are left out.

    Returns:
        The paths (image, mask); None instead of the path of a file that does not exist.

    Raises:
        UserError: If several files in the folder have one of the two names.
    """
    files = file_names.list_folder(folder, ignored_names).files
    image, mask = (_only_file(files, name) for name in (image_name, mask_name))
    return image, mask


def pair_case_folders(folder: Path, names: NameSettings) -> Found:
    """Find the image and the mask in each case folder of a site.

    A site's folder contains one folder per case, such as `CASE1/t2.nii.gz` and `CASE1/segmentation.nii.gz`. The files
    have the same names in every case folder.

    Args:
        folder: folder of the site.
        names: `image_name` and `mask_name` are the names of the two files in each case folder, without suffix.

    Returns:
        The pairs by the name of the case folder, and one sentence for each case folder without image or mask, or with
        several of them.
    """
    found = Found()
    assert names.image_name and names.mask_name
    for name, case in file_names.list_folder(folder, names.ignored_names).folders.items():
        try:
            image, mask = find_case_files(case, names.image_name, names.mask_name, names.ignored_names)
        except UserError as error:
            found.problems.append(str(error))
            continue
        if image and mask:
            found.pairs[name] = image, mask
        else:
            found.problems.append(
                f"{case}: the folder has no file named {names.mask_name if image else names.image_name}; expected an "
                "image and a mask; add the file, or remove the folder"
            )
    return found


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


def case_name(path: Path, pattern: str | None) -> str | None:
    """Return the name of the case that a file belongs to.

    Args:
        path: an image file or a mask file.
        pattern: such as "*_T2": the `*` stands for the name of the case. A pattern that ends with the suffix of an
            image file, such as "*.png", is compared with the whole name of the file. None returns the name of the
            file without its suffix.

    Returns:
        The name in the Unicode form NFC (`file_names.composed`); None if the file does not fit the pattern.
    """
    stem = file_names.stem_of(path)
    if pattern is None:
        return stem
    pattern = composed(pattern)
    name = composed(path.name) if suffix(Path(pattern)) else stem
    start, star, end = pattern.partition("*")
    if not star:
        return stem if name.casefold() == pattern.casefold() else None
    fits = name.casefold().startswith(start.casefold()) and name.casefold().endswith(end.casefold())
    return name[len(start) : len(name) - len(end)] if fits and len(name) > len(start) + len(end) else None


def _only_file(files: Sequence[Path], name: str) -> Path | None:
    """Return the file with a name; None if there is none. Several such files raise a UserError."""
    fitting = [path for path in files if case_name(path, name) is not None]
    if len(fitting) > 1:
        raise UserError(
            f"{fitting[1]}: another file has the same name: {fitting[0].name}; remove one of them, or give the name "
            f"with its suffix (data.image_name or data.mask_name: {fitting[1].name})"
        )
    return fitting[0] if fitting else None


def _split_files(files: Sequence[Path], names: NameSettings) -> tuple[list[Path], list[Path]]:
    """Divide the files in one folder into images and masks, by the patterns or by the usual words for a mask."""
    if names.mask_name is not None:
        masks = [path for path in files if case_name(path, names.mask_name) is not None]
        chosen = set(masks)
        return [path for path in files if path not in chosen and case_name(path, names.image_name) is not None], masks
    stems = set(split_names([stem_of(path) for path in files])[1])
    masks = [path for path in files if stem_of(path) in stems]
    if names.image_name is None:
        return [path for path in files if stem_of(path) not in stems], masks
    images = [path for path in files if case_name(path, names.image_name) is not None]
    chosen = set(images)
    others = [path for path in files if path not in chosen]
    return images, [path for path in others if stem_of(path) in stems] or others


def _by_name(paths: Sequence[Path], pattern: str | None) -> tuple[dict[str, Path], Problems]:
    """Return the image files that fit a pattern by the names of their cases; a name that exists twice is a problem."""
    by_name: dict[str, Path] = {}
    problems = []
    for path in paths:
        if (name := case_name(path, pattern)) is None:
            continue
        if name in by_name and path.name != by_name[name].name and composed(path.name) == composed(by_name[name].name):
            problems.append(
                f"{path}: the names of two files in this folder look the same, but store their letters with accents in "
                "two ways (Unicode NFC and NFD, as Windows and macOS do); expected one file of this name; remove or "
                "rename one of them"
            )
        elif name in by_name:
            problems.append(f"{path}: another file has the same name: {by_name[name].name}; remove one of them")
        by_name[name] = path
    return by_name, problems


def _pair_only_case(images: Mapping[str, Path], masks: Mapping[str, Path]) -> Found | None:
    """Pair the only image and the only mask of a case, whatever their names; None for other numbers of files.

    Several masks of a single image are a problem, because it is not known what each of them shows.
    """
    if len(images) != 1 or not masks:
        return None
    (name, image), = images.items()
    if len(masks) == 1:
        (mask_name, mask), = masks.items()
        return None if contradict(name, mask_name) else Found({name: (image, mask)})
    if pair_names(images, masks).image_of:
        return None
    return Found({}, [pairing_messages.several_masks(image, list(masks.values()))])


def pair_files(
    images: Mapping[str, Path], masks: Mapping[str, Path], problems: Problems, image_folder: Path, mask_folder: Path,
    suggest_keys: bool,
) -> Found:
    """Pair images and masks by their names; every file without a counterpart gives a problem.

    Args:
        images, masks: the files, or folders of DICOM slices, by the names of their cases.
        problems: problems that were found before; they come first in the result.
        image_folder, mask_folder: the folders that hold them, for the sentences about them.
        suggest_keys: whether the sentences may recommend settings.
    """
    result = pair_names(images, masks)
    if result.rivals:
        return Found({}, [*problems, pairing_messages.rivals(result.rivals, images, masks)])
    if images and masks and not result.image_of and suggest_keys:
        return Found({}, [*problems, pairing_messages.no_pair(images, masks, image_folder, mask_folder)])
    leave_out = ", or leave it out with data.ignored_names" if suggest_keys else ""
    second = {mask for masks_of_one in result.second_masks for mask in masks_of_one[:2]}
    mask_of = {image: mask for mask, image in result.image_of.items()}
    problems = problems + [
        f"{masks[mask]}: is a second mask of the image {image}; {masks[other].name} is also one; remove one of them"
        + leave_out for mask, other, image in result.second_masks
    ]  # fmt: skip
    problems += [
        f"{path}: this image has no mask; add the mask, or remove the image{leave_out}"
        for name, path in images.items() if name not in mask_of
    ]
    problems += [
        f"{path}: this mask has no image; add the image, or remove the mask{leave_out}"
        for name, path in masks.items() if name not in result.image_of and name not in second
    ]
    return Found({name: (path, masks[mask_of[name]]) for name, path in images.items() if name in mask_of}, problems)
