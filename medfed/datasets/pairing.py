"""Pair the image files and the mask files of a folder, or of two folders, and say what has no counterpart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medfed.core.errors import UserError
from medfed.datasets import file_names, pairing_messages
from medfed.datasets.file_names import Listing, composed, stem_of
from medfed.datasets.name_pairs import belong_to_others, has_equal_names, pair_names, split_names
from medfed.datasets.reading import suffix

Problems = list[str]  # one sentence each
MASK_NAMES = ("segmentation", "mask", "seg", "label", "labels")  # usual names of the mask in a case folder, lower case
SLICER_ENDING = ".seg"  # of the name of a segmentation that 3D Slicer writes, as in Segmentation.seg.nrrd


@dataclass(frozen=True)
class NameSettings:
    """How the folders and files of a dataset are named: the settings of the dataset `folder` of the same names.

    A `dataset.json` may not lead out of `links_inside` by a symbolic link; None follows all links.
    """

    image_folders: tuple[str, ...] = ()
    mask_folders: tuple[str, ...] = ()
    image_name: str | None = None
    mask_name: str | None = None
    ignored_names: tuple[str, ...] = ()
    merge_masks: bool = False
    links_inside: Path | None = None


@dataclass
class Found:
    """The pairs of image and mask in a folder.

    Args:
        pairs: (image, mask) by the name of the case, which is the name of the image without its suffix.
        problems: one sentence for each file that has no counterpart, exists twice or has an unsupported format.
        patients: identifier of the patient by the name of the case, where the folder of the case says it.
        more_masks: further masks of the image by the name of the case, with `NameSettings.merge_masks`.
    """

    pairs: dict[str, tuple[Path, Path]] = field(default_factory=dict)
    problems: Problems = field(default_factory=list)
    patients: dict[str, str] = field(default_factory=dict)
    more_masks: dict[str, tuple[Path, ...]] = field(default_factory=dict)

    def only_case(self, name: str) -> Found:
        """Return the only pair under another name, that of the folder of the case."""
        (pair,) = self.pairs.values()
        more_masks = next(iter(self.more_masks.values()), ())
        return Found({name: pair}, more_masks={name: more_masks} if more_masks else {})

    def add(self, name: str, inner: Found) -> None:
        """Add the pairs of an inner folder; the name of this folder comes before the names of its cases."""
        for case, pair in inner.pairs.items():
            self.pairs[f"{name}/{case}"] = pair
        self.problems += inner.problems
        self.patients.update({f"{name}/{case}": patient for case, patient in inner.patients.items()})
        self.more_masks.update({f"{name}/{case}": masks for case, masks in inner.more_masks.items()})


def pair_two_folders(images: Path, masks: Path, names: NameSettings | None = None, is_case: bool = False) -> Found:
    """Pair the images in one folder with the masks in another folder: `images/NAME.ext` with `masks/NAME.ext2`.

    If the names are not equal, also without a word such as `_mask`, they are paired by a rule or by their numbers
    (`name_pairs.pair_names`). If `names` is None, no message recommends a setting. `is_case` as in
    `pair_in_one_folder`.
    """
    suggest_keys = names is not None
    names = names or NameSettings()
    by_name, problems = [], list[str]()
    for folder, pattern in ((images, names.image_name), (masks, names.mask_name)):
        listing = file_names.list_folder(folder, names.ignored_names)
        files, duplicates = _by_name(listing.files, pattern)
        by_name.append(files)
        problems += [*file_names.unsupported_problems(listing, suggest_keys), *duplicates]
    if is_case and not problems and (found := _pair_only_case(by_name[0], by_name[1], names)):
        return found
    return pair_files(by_name[0], by_name[1], problems, images, masks, names if suggest_keys else None)


def pair_in_one_folder(folder: Path, names: NameSettings, is_case: bool = False) -> Found:
    """Pair images and masks in the same folder by a word at the end or start of a mask's name, such as `_mask`.

    With `is_case`, the folder may belong to a single case: its only image and its only mask then need no similar names,
    but their names must not contradict each other (`name_pairs.belong_to_others`).
    """
    listing = file_names.list_folder(folder, names.ignored_names)
    images, masks = _split_files(listing.files, names)
    if pairs_of_endings := pairing_messages.same_name_twice(images, masks):
        return Found({}, [pairs_of_endings])
    images_by_name, problems = _by_name(images, names.image_name)
    masks_by_name, mask_problems = _by_name(masks, names.mask_name)
    problems = [*file_names.unsupported_problems(listing, True), *problems, *mask_problems]
    if is_case and not problems and (found := _pair_only_case(images_by_name, masks_by_name, names)):
        return found
    if len(images_by_name) > 1 and not masks_by_name and not problems:
        return Found({}, [pairing_messages.no_mask_word(folder, images_by_name)])
    return pair_files(images_by_name, masks_by_name, problems, folder, folder, names)


def folders_of_masks(images: Listing, masks: Listing, names: NameSettings) -> Found | None:
    """Pair images with folders of masks of the same names: `images/a.png` with `masks/a/1.png` and `masks/a/2.png`.

    None if less than half of the images have such a folder. Without `merge_masks`, several masks in it are a problem.
    """
    stems = {stem_of(path): path for path in images.files}
    folders = {composed(name): path for name, path in masks.folders.items()}
    if masks.files or 2 * len(stems.keys() & folders.keys()) < max(len(stems), 1):
        return None
    files = {name: file_names.list_folder(path, names.ignored_names).files for name, path in folders.items()}
    if not names.merge_masks and any(len(paths) > 1 for paths in files.values()):
        name = max(files, key=lambda name: len(files[name]))
        return Found({}, [pairing_messages.several_in_folder(masks.folder, name, len(files[name]))])
    found = Found(problems=file_names.unsupported_problems(images, suggest_keys=True))
    for name, path in stems.items():
        if first := files.get(name, ())[:1]:
            found.pairs[name], found.more_masks[name] = (path, first[0]), files[name][1:]
        else:
            found.problems.append(pairing_messages.no_mask(path, [], suggest_keys=True))
    found.problems += [
        f"{folders[name]}: there is no image {name} in {images.folder}; add it, or remove this folder"
        for name in files
        if name not in stems
    ]
    return found


def find_case_files(
    folder: Path, image_name: str, mask_name: str, ignored_names: Sequence[str] = ()
) -> tuple[Path | None, Path | None]:
    """Return the image and the mask in the folder of one case; None for a file that does not exist.

    The names have no suffix, unless several files have the same name; upper and lower case are not distinguished.
    """
    files = file_names.list_folder(folder, ignored_names).files
    image, mask = (_only_file(files, name) for name in (image_name, mask_name))
    return image, mask


def pair_case_folders(folder: Path, names: NameSettings) -> Found:
    """Find the files `image_name` and `mask_name` in each case folder of a site, such as `CASE/t2.nii.gz`."""
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
    """Return the names, without suffixes, of the only image and the only mask with a usual name in a folder, or None.

    Of several other image files, the one with a usual name, such as "t2" or "image", is the image.
    """
    endings = {path.name: suffix(path) for path in sorted(folder.iterdir()) if path.is_file()}
    stems = [name.removesuffix(ending) for name, ending in endings.items() if ending and name.endswith(ending)]
    masks = [stem for stem in stems if stem.lower().removesuffix(SLICER_ENDING) in MASK_NAMES]
    others = [stem for stem in stems if stem not in masks]
    images = [stem for stem in others if stem.lower() in pairing_messages.USUAL_IMAGE_NAMES] or others
    return (images[0], masks[0]) if len(masks) == 1 and len(images) == 1 else None


def case_name(path: Path, pattern: str | None) -> str | None:
    """Return the name of the case that an image or mask belongs to, in the Unicode form NFC; None if it does not fit.

    In a pattern such as "*_T2", the `*` stands for the name of the case. A pattern that ends with the suffix of an
    image file, such as "*.png", is compared with the whole name of the file. None returns the name without its suffix.
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
    """Return the file with a name; None if there is none, and UserError if there are several."""
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


def _pair_only_case(images: Mapping[str, Path], masks: Mapping[str, Path], names: NameSettings) -> Found | None:
    """Pair the only image and the only mask of a case, whatever their names; None for other numbers of files.

    Several masks are a problem unless all are joined, because it is not known what each of them shows.
    """
    if len(images) != 1 or not masks:
        return None
    ((name, image),) = images.items()
    if len(masks) == 1:
        ((mask_name, mask),) = masks.items()
        return None if belong_to_others(name, mask_name) else Found({name: (image, mask)})
    if has_equal_names(images, masks):
        return None
    if names.merge_masks:
        first, *others = masks.values()
        return Found({name: (image, first)}, more_masks={name: tuple(others)})
    return Found({}, [pairing_messages.several_masks(image, list(masks.values()))])


def pair_files(
    images: Mapping[str, Path],
    masks: Mapping[str, Path],
    problems: Problems,
    image_folder: Path,
    mask_folder: Path,
    names: NameSettings | None,
) -> Found:
    """Pair images and masks, given by the names of their cases; every file without a counterpart gives a problem.

    The two folders are named in messages; `problems` come first in the result. `names` is None to recommend no setting.
    """
    result = pair_names(images, masks)
    if result.rivals:
        return Found({}, [*problems, pairing_messages.rivals(result.rivals, images, masks)])
    if images and masks and not result.image_of and names:
        return Found({}, [*problems, pairing_messages.no_pair(images, masks, image_folder, mask_folder)])
    several: dict[str, set[str]] = {}
    for *both, image in result.second_masks:
        several.setdefault(image, set()).update(both)
    is_second = {mask for group in several.values() for mask in group}
    first_mask = {image: mask for mask, image in result.image_of.items()}
    more_masks: dict[str, tuple[Path, ...]] = {}
    if names and names.merge_masks:
        for image, group in several.items():
            first, *others = sorted(group)
            first_mask[image], more_masks[image] = first, tuple(masks[mask] for mask in others)
    else:
        problems = problems + [
            pairing_messages.second_mask(masks[mask], masks[other], image, suggest_keys=names is not None)
            for mask, other, image in result.second_masks
        ]
    problems = problems + [
        pairing_messages.no_mask(path, [images[other] for other in first_mask], suggest_keys=names is not None)
        for name, path in images.items()
        if name not in first_mask
    ]
    leave_out = ", or leave it out with data.ignored_names" if names else ""
    problems += [
        f"{path}: this mask has no image; add the image, or remove the mask{leave_out}"
        for name, path in masks.items()
        if name not in result.image_of and name not in is_second
    ]
    pairs = {name: (path, masks[first_mask[name]]) for name, path in images.items() if name in first_mask}
    return Found(pairs, problems, more_masks=more_masks)
