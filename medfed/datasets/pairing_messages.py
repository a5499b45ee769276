"""Say why the files of a folder make no pairs of image and mask, and which setting helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from medfed.datasets import file_names
from medfed.datasets.file_names import stem_of
from medfed.datasets.name_pairs import are_channels
from medfed.datasets.reading import suffix

USUAL_IMAGE_NAMES = ("t2", "t2w", "image", "img")  # of the image in the folder of a case, lower case
_SEPARATORS = "_-. "


def several_masks(image: Path, masks: Sequence[Path]) -> str:
    """Return the problem that the only image of a case has several masks, none of which has its name."""
    others = ", ".join(f"'{path.name}'" for path in masks[1:3])
    return (
        f"{image}: this image has {len(masks)} masks, such as {masks[0].name} and {masks[1].name}; expected one mask "
        "for each image; if all show the same structure, such as lesions, set data.merge_masks: true to join them; if "
        "they show several structures, merge them into one file with the values 1, 2, ... "
        f"(data.mask_values); if not, leave out all but one with data.ignored_names, such as [{others}]"
    )


def several_in_folder(masks: Path, name: str, n_masks: int) -> str:
    """Return the problem that images have a folder with several masks each, such as `name` in the folder `masks`."""
    return (
        f"{masks}: it holds a folder of masks for each image, such as {name}/ with {n_masks} masks; expected one mask "
        "for each image; if they show several structures, merge them into one file with the values 1, 2, ... "
        "(data.mask_values); if all show the same structure, such as lesions or cells, set data.merge_masks: true to "
        "join them"
    )


def second_mask(mask: Path, other: Path, image: str, suggest_keys: bool) -> str:
    """Return the problem that an image has two masks; `suggest_keys` says whether to recommend settings."""
    problem = f"{mask}: is a second mask of the image {image}; {other.name} is also one; "
    if not suggest_keys:
        return problem + "remove one of them"
    return (
        problem + "if both show the same structure, such as two lesions, set data.merge_masks: true to join the masks "
        "of an image; if they show several structures, merge them into one file with the values 1, 2, ... "
        "(data.mask_values); if only one of them counts, remove the other, or leave out such files with "
        f"data.ignored_names: ['{_pattern_of(mask, image)}']"
    )


def no_mask(image: Path, others: Sequence[Path], suggest_keys: bool) -> str:
    """Return the problem that an image has no mask.

    If it has the name of one of `others`, images with a mask, and a further word, such as `a_overlay` beside `a`, the
    sentence says how all such files are left out.
    """
    stem = stem_of(image)
    bases = [stem_of(path) for path in others]
    endings = [stem[len(base) :] for base in bases if stem.startswith(base) and stem[len(base)] in _SEPARATORS]
    text = f"{image}: this image has no mask; add the mask, or remove the image"
    if not suggest_keys:
        return text
    if endings:
        return f"{text}, or leave out such files with data.ignored_names: ['*{min(endings, key=len)}.*']"
    return text + ", or leave it out with data.ignored_names"


def _pattern_of(mask: Path, image: str) -> str:
    """Return the pattern of the names of masks that are called as this one: "*_mask_1.*"; its name if there is none."""
    stem = stem_of(mask)
    return f"*{stem[len(image) :]}.*" if stem.startswith(image) and len(stem) > len(image) else mask.name


def no_pair(images: Mapping[str, Path], masks: Mapping[str, Path], image_folder: Path, mask_folder: Path) -> str:
    """Return the problem that no image has a name that belongs to a mask."""
    image, mask = (next(iter(group.values())) for group in (images, masks))
    text = (
        f"{image_folder}: none of the {len(images)} images (such as {image.name}) has a name that belongs to one of "
        f"the {len(masks)} masks (such as {mask.name}) in {mask_folder}; "
    )
    if image_folder == mask_folder and len(masks) == 1 and (both := _names_in_cases(list(images.values()), mask)):
        return text + (
            f"if each folder is a case, set data.image_name: {both[0]} and data.mask_name: {both[1]}, or "
            "write the pairs into a table (data.datalist)"
        )
    first, second = stem_of(image), stem_of(mask)
    start = _common(first, second)
    if any(map(str.isalnum, first[:start])):
        return text + (
            f"if {image.name} belongs to {mask.name}, set data.image_name: '*{first[start:]}' and data.mask_name: "
            f"'*{second[start:]}', or write the pairs into a table (data.datalist)"
        )
    return text + (
        "set data.image_name and data.mask_name, such as '*_T2' and '*_seg', or write the pairs into a table "
        "(data.datalist)"
    )


def _names_in_cases(images: Sequence[Path], mask: Path) -> tuple[str, str] | None:
    """Return the names of the image and the mask that a case folder and all folders beside it have, or None.

    Of several images, one that is called T2 or image is preferred.
    """
    others = [
        file_names.list_folder(path).files
        for path in mask.parent.parent.iterdir()
        if path.is_dir() and path != mask.parent and path.name[0] != "."
    ]
    in_all = [set(map(stem_of, files)) for files in others if files]
    usual = sorted(map(stem_of, images), key=lambda stem: stem.casefold() not in USUAL_IMAGE_NAMES)
    fitting = [stem for stem in usual if in_all and all({stem, stem_of(mask)} <= stems for stems in in_all)]
    return (fitting[0], stem_of(mask)) if fitting else None


def rivals(rivals: Sequence[tuple[str, str, str]], images: Mapping[str, Path], masks: Mapping[str, Path]) -> str:
    """Return the problem that two images may belong to the same mask; `rivals` is that of `name_pairs.NamePairs`."""
    mask, first, second = rivals[0]
    n = len({rival[0] for rival in rivals})
    first, second = sorted((first, second))
    kind = "two channels of a case" if are_channels(first, second) else "two images"
    pattern = f"*{first[_common(first, second) :]}"
    if "*" == pattern or first[: _common(first, second)] == "":
        pattern = first
    return (
        f"{masks[mask]}: {kind}, {images[first].name} and {images[second].name}, may belong to this mask"
        f"{f' (and so for {n - 1} more masks)' if n > 1 else ''}; expected one image per mask; choose the image with "
        f"data.image_name, such as '{pattern}'"
    )


def _common(first: str, second: str) -> int:
    """Return the length of the common start of two names, up to the last separator in it."""
    n = next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), min(len(first), len(second)))
    return max((i for i in range(n + 1) if first[i : i + 1] in ("_", "-", ".", " ")), default=n)


def same_name_twice(images: Sequence[Path], masks: Sequence[Path]) -> str:
    """Return the problem that every image exists with two suffixes, one of which may be the mask; "" if not."""
    endings: dict[str, set[str]] = {}
    for path in images:
        endings.setdefault(stem_of(path), set()).add(suffix(path) or "")
    kinds = {tuple(sorted(both)) for both in endings.values()}
    if masks or len(kinds) != 1 or len(both := next(iter(kinds))) != 2:
        return ""
    first = images[0]
    return (
        f"{first.parent}: every name exists as {both[0]} and as {both[1]}, such as {stem_of(first)}; which of them are "
        f"the masks? set data.mask_name: '*{both[1]}' or '*{both[0]}'"
    )


def no_mask_word(folder: Path, images: Mapping[str, Path]) -> str:
    """Return the problem that no file in a folder is recognised as a mask."""
    ordered = sorted(images)[:100]
    longer = {
        a: [b for b in ordered if a != b and b.startswith(a) and not (a[-1:].isdigit() and b[len(a)].isdigit())]
        for a in ordered
    }
    first = next((name for name, others in longer.items() if others), None)
    endings = [other[len(first) :] for other in longer[first]] if first else ["_gland"]
    example = f"such as {images[first].name} and {images[longer[first][0]].name}" if first else f"such as {ordered[0]}"
    setting = f"set data.mask_name, such as '*{endings[0]}'"
    if not first and (both := _two_endings(ordered)):
        setting = f"set data.mask_name and data.image_name, such as '*{both[1]}' and '*{both[0]}'"
    text = (
        f"{folder}: found {len(images)} image files ({example}), and none has a name of a mask (NAME_mask, NAME_seg, "
        f"NAME_label, mask_NAME); which files are the masks? {setting}"
    )
    if len(endings) > 1:
        others = ", ".join(f"'*{ending}.*'" for ending in endings[1:])
        text += (
            f", and data.ignored_names: [{others}]; if these files show several structures, merge them into one "
            "file for each image, with the values 1, 2, ... (data.mask_values)"
        )
    text += (
        "; if the images have classes (a classification needs at least two) and no masks, list them in a table "
        "(data.datalist) with the columns site, image and class"
    )
    text += f"; if this folder holds no cases, leave it out with data.ignored_names: [{folder.name}]"
    if documents := file_names.outline_files(folder):
        text += f"; {documents} in this folder are not read: draw the outlines in them into image files"
    return text


def _two_endings(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the two endings that every name has after the last separator, such as _A and _B; None for other names."""
    endings: dict[str, list[str]] = {}
    for name in names:
        start = max(map(name.rfind, _SEPARATORS))
        endings.setdefault(name[:start] if start > 0 else "", []).append(name[start:])
    kinds = set(map(tuple, endings.values()))
    both = next(iter(kinds), ())
    return (both[0], both[1]) if len(kinds) == 1 and len(both) == 2 and "" not in endings else None
