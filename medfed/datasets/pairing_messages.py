"""Say why the files of a folder make no pairs of image and mask, and which setting helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from medfed.datasets import file_names
from medfed.datasets.file_names import stem_of
from medfed.datasets.name_pairs import are_channels
from medfed.datasets.reading import suffix


def several_masks(image: Path, masks: Sequence[Path]) -> str:
    """Return the problem that the only image of a case has several masks, none of which has its name.

    Args:
        image: the image.
        masks: at least two masks.
    """
    others = ", ".join(f"'{path.name}'" for path in masks[1:3])
    return (
        f"{image}: this image has {len(masks)} masks, such as {masks[0].name} and {masks[1].name}; expected one mask "
        "for each image; if they show several structures, merge them into one file with the values 1, 2, ... "
        f"(data.mask_values); if not, leave out all but one with data.ignored_names, such as [{others}]"
    )


def no_pair(images: Mapping[str, Path], masks: Mapping[str, Path], image_folder: Path, mask_folder: Path) -> str:
    """Return the problem that no image has a name that belongs to a mask.

    Args:
        images, masks: the files by the names of their cases.
        image_folder, mask_folder: the folders of the files.
    """
    image, mask = (next(iter(group.values())).name for group in (images, masks))
    return (
        f"{image_folder}: none of the {len(images)} images (such as {image}) has a name that belongs to one of the "
        f"{len(masks)} masks (such as {mask}) in {mask_folder}; set data.image_name and data.mask_name, such as '*_T2' "
        "and '*_seg', or write the pairs into a table (data.datalist)"
    )


def rivals(rivals: Sequence[tuple[str, str, str]], images: Mapping[str, Path], masks: Mapping[str, Path]) -> str:
    """Return the problem that two images may belong to the same mask.

    Args:
        rivals: (mask, image, other image), from `name_pairs.pair_names`.
        images, masks: the files by the names of their cases.
    """
    mask, first, second = rivals[0]
    n = len({rival[0] for rival in rivals})
    first, second = sorted((first, second))
    kind = "two channels of a case" if are_channels(first, second) else "two images"
    pattern = f"*{first[_common(first, second):]}"
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
    """Return the problem that every image exists with two suffixes, one of which may be the mask; "" if not.

    Args:
        images: the files that are not masks by their names.
        masks: the files that are masks by their names.
    """
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
    """Return the problem that no file in a folder is recognised as a mask.

    Args:
        folder: the folder.
        images: its image files by their names.
    """
    ordered = sorted(images)[:100]
    longer = {a: [b for b in ordered if a != b and b.startswith(a) and not (a[-1:].isdigit() and b[len(a)].isdigit())]
              for a in ordered}  # fmt: skip
    first = next((name for name, others in longer.items() if others), None)
    endings = [other[len(first) :] for other in longer[first]] if first else ["_gland"]
    found = f"such as {images[first].name} and {images[longer[first][0]].name}" if first else f"such as {ordered[0]}"
    text = (
        f"{folder}: found {len(images)} image files ({found}), and none has a name of a mask (NAME_mask, NAME_seg, "
        f"NAME_label, mask_NAME); which files are the masks? set data.mask_name, such as '*{endings[0]}'"
    )
    if len(endings) > 1:
        others = ", ".join(f"'*{ending}.*'" for ending in endings[1:])
        text += (f", and data.ignored_names: [{others}]; if these files show several structures, merge them into one "
                 "file for each image, with the values 1, 2, ... (data.mask_values)")  # fmt: skip
    text += f"; if this folder holds no cases, leave it out with data.ignored_names: [{folder.name}]"
    if documents := file_names.outline_files(folder):
        text += f"; {documents} in this folder are not read: draw the outlines in them into image files"
    return text
