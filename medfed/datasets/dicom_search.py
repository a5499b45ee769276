"""Find the cases of a site whose images are DICOM files: folders of slices, each with a mask beside it or elsewhere.

The arrangements are: a folder per case with the slices and the mask in it or in folders inside it, and a folder of
images with a folder of masks. Which file is an image is read from its first bytes, as DICOM files have any name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from medfed.datasets.dicom_files import MAX_DICOM_DEPTH, STRUCTURE_SET, SUFFIXES, files_of_kind, kind_of, sop_class
from medfed.datasets.file_names import is_ignored, list_folder, stem_of
from medfed.datasets.name_pairs import mask_base
from medfed.datasets.pairing import Found, NameSettings, case_name, pair_files
from medfed.datasets.part_names import is_part
from medfed.datasets.reading import suffix
from medfed.datasets.site_search import MASK_FOLDERS, find_pairs, find_roles
from medfed.datasets.volumes import SUFFIXES as VOLUME_SUFFIXES


@dataclass(frozen=True)
class Content:
    """What a folder and the folders inside it that are not empty hold.

    Args:
        slices: DICOM images directly in it.
        masks: DICOM SEG objects and files of other image formats directly in it, such as NIfTI.
    """

    folder: Path
    slices: tuple[Path, ...]
    masks: tuple[Path, ...]
    folders: tuple[Content, ...]

    def inside(self) -> Iterator[Content]:
        """Yield the content of this folder and of all folders inside it."""
        yield self
        for content in self.folders:
            yield from content.inside()

    def all_masks(self) -> list[Path]:
        """Return the files in this folder and the folders inside it that may be masks."""
        return [path for content in self.inside() for path in content.masks]

    def image_folder(self) -> Path | None:
        """Return the innermost folder that holds all DICOM images of this folder; None if there is none."""
        if self.slices:
            return self.folder
        folders = [path for content in self.folders if (path := content.image_folder())]
        return folders[0] if len(folders) == 1 else self.folder if folders else None


def find_dicom_pairs(folder: Path, names: NameSettings) -> Found:
    """Find the DICOM images of a site, each with its mask, by the path of the case's folder, relative to the site.

    The first folder of this path is the patient. The path may contain names of patients: `dicom_names.hide_names`
    replaces them. Cases without DICOM files are found as in other sites.
    """
    site = _read_content(folder, names, MAX_DICOM_DEPTH)
    if site.slices:
        return Found(
            {},
            [
                f"{folder}: DICOM files lie directly in the folder of the site; expected one folder per case with its "
                f"slices and its mask; if this folder is a case, give the folder {folder.parent.parent} instead"
            ],
        )
    if roles := _image_and_mask_folders(site, names):
        found = pair_dicom_folders(roles[0].folder, roles[1].folder, names)
    else:
        found = _find_cases(site, folder, names, is_site=True)
        if not found.pairs and len(site.masks) == 1 and len(site.folders) == 1 and site.folders[0].image_folder():
            return Found(
                {},
                [
                    f"{folder}: found one folder of DICOM files, {site.folders[0].folder.name}, and one mask with "
                    f"another name, {site.masks[0].name}; expected one folder per case with its slices and its mask; "
                    f"if this folder is a case, give the folder {folder.parent.parent} instead"
                ],
            )
    for name in found.pairs:
        folders = [part for part in name.split("/") if not is_part(part)]
        found.patients[name] = folders[0] if folders else name
    return found


def pair_dicom_folders(images: Path, masks: Path, names: NameSettings) -> Found:
    """Pair the folders of slices in one folder with the masks in another one by their names: `images/A`, `masks/A.nii`.

    The masks are files, or folders with one file each. The images may also be files of other formats, such as NIfTI.
    """
    image_content, mask_content = (_read_content(folder, names, MAX_DICOM_DEPTH) for folder in (images, masks))
    if image_content.slices:
        return Found(
            {},
            [
                f"{images}: DICOM files lie directly in the folder of all images; expected one folder per case; put "
                "the slices of each case into a folder of their own"
            ],
        )
    problems: list[str] = []
    images_by_name = {_stem(path): path for path in image_content.masks}
    for inner in image_content.folders:
        if path := _image_of(inner, problems):
            images_by_name[inner.folder.name] = path
    masks_by_name = _masks_by_name(mask_content.masks, names.mask_name)
    for inner in mask_content.folders:
        if path := _mask_of(inner, names, problems):
            masks_by_name[inner.folder.name] = path
    return pair_files(images_by_name, masks_by_name, problems, images, masks, names)


def _read_content(folder: Path, names: NameSettings, depth: int) -> Content:
    """Read what a folder holds, without the folders and files that hold no image and no mask."""
    slices, masks, folders = [], [], []
    for path in sorted(folder.iterdir()):
        if is_ignored(path, names.ignored_names):
            continue
        if path.is_dir():
            content = _read_content(path, names, depth - 1) if depth else Content(path, (), (), ())
            folders += [content] if content.slices or content.masks or content.folders else []
        elif suffix(path):
            masks.append(path)
        elif kind := kind_of(path):
            slices += [path] if kind == "image" else []
            masks += [path] if kind == "segmentation" else []
    return Content(folder, tuple(slices), tuple(masks), tuple(folders))


def _image_and_mask_folders(site: Content, names: NameSettings) -> tuple[Content, Content] | None:
    """Return the folders of a site that hold the images and the masks of all cases; None if there are none."""
    roles = find_roles(list_folder(site.folder, names.ignored_names), names)
    by_path = {content.folder: content for content in site.folders}
    if roles.images in by_path and roles.masks in by_path and not roles.question:
        return by_path[roles.images], by_path[roles.masks]
    images = [content for content in site.folders if content.image_folder() and not content.all_masks()]
    masks = [content for content in site.folders if content.all_masks() and not content.image_folder()]
    if len(site.folders) != 2 or len(images) != 1 or len(masks) != 1 or site.masks:
        return None
    is_named = masks[0].folder.name.casefold() in (*MASK_FOLDERS, *map(str.casefold, names.mask_folders))
    return (images[0], masks[0]) if is_named or len(images[0].folders) > 1 else None


def _find_cases(content: Content, site: Path, names: NameSettings, is_site: bool = False) -> Found:
    """Find the pairs in a folder: one case, or several folders with cases."""
    name = content.folder.relative_to(site).as_posix()
    images = [inner for inner in content.folders if inner.image_folder()]
    without_mask = [inner for inner in images if not inner.all_masks()]
    found = Found()
    if (
        content.masks
        and not content.slices
        and without_mask
        and (is_site or len(without_mask) > 1 < len(content.masks))
    ):
        beside = _pair_beside(content, without_mask, names)  # CASE/ with CASE_mask.nii.gz
        if is_site:
            found = beside
        else:  # patients have folders of the same names, such as pre/ and post/
            found.add(name, beside)
        others = tuple(inner for inner in content.folders if inner not in without_mask)
        content = Content(content.folder, (), (), others)
        is_site = True
    complete = [inner for inner in images if inner.all_masks()]
    if not is_site and (content.slices or content.masks or len(complete) < len(content.folders)):
        if content.image_folder() or files_of_kind(content.folder, "segmentation", names.ignored_names):
            return _case(content, name, names)
        return _plain_case(content, name, names)
    for inner in content.folders:
        result = _find_cases(inner, site, names)
        found.pairs |= result.pairs
        found.more_masks |= result.more_masks
        found.problems += result.problems
    found.problems += [
        f"{path}: this file lies beside the folders of the cases; expected a mask in the folder of its case; move it, "
        "or leave it out with data.ignored_names"
        for path in content.masks
    ]
    return found


def _case(content: Content, name: str, names: NameSettings) -> Found:
    """The pair of image and mask in the folder of one case, or the problem with it."""
    problems: list[str] = []
    image = content.image_folder()
    if image is None:  # a NIfTI image with a DICOM SEG mask
        volumes = [path for path in content.all_masks() if suffix(path)]
        segmentations = [path for path in content.all_masks() if not suffix(path)]
        if len(volumes) == len(segmentations) == 1:
            return Found({name: (volumes[0], segmentations[0])})
        return Found(
            {},
            [
                f"{content.folder}: found {len(volumes)} image files and {len(segmentations)} DICOM SEG files; "
                "expected one of each; remove the others, or leave them out with data.ignored_names"
            ],
        )
    mask = _mask_of(content, names, problems)
    return Found({name: (image, mask)} if mask else {}, problems)


def _plain_case(content: Content, name: str, names: NameSettings) -> Found:
    """Find the pairs of a folder without DICOM files as in other sites, with the folder's name before their names."""
    inner = find_pairs(content.folder, names, depth=1)
    if len(inner.pairs) == 1 and not inner.problems:
        return inner.only_case(name)
    found = Found()
    found.add(name, inner)
    return found


def _pair_beside(content: Content, images: Sequence[Content], names: NameSettings) -> Found:
    """Pair folders of slices with files that lie beside these folders, by their names."""
    by_name = {inner.folder.name: folder for inner in images if (folder := inner.image_folder())}
    masks = _masks_by_name(content.masks, names.mask_name)
    return pair_files(by_name, masks, [], content.folder, content.folder, names)


def _masks_by_name(files: Sequence[Path], pattern: str | None) -> dict[str, Path]:
    """Return mask files by the names of their cases, without those that do not fit the pattern."""
    if pattern is None:
        return {_stem(path): path for path in files}
    return {name: path for path in files if (name := case_name(path, pattern)) is not None}


def _image_of(content: Content, problems: list[str]) -> Path | None:
    """Return the image of a case: its folder of slices, or its only file of another format."""
    if folder := content.image_folder():
        return folder
    files = content.all_masks()
    if len(files) != 1:
        problems.append(f"{content.folder}: found {len(files)} image files; expected one; remove the others")
    return files[0] if len(files) == 1 else None


def _mask_of(content: Content, names: NameSettings, problems: list[str]) -> Path | None:
    """Return the mask of a case: its only file that is a mask by `mask_name`, by a usual name, or at all."""
    files = content.all_masks()
    if names.mask_name is not None:
        files = [path for path in files if case_name(path, names.mask_name) is not None]
    if len(files) > 1:
        usual = [path for path in files if mask_base(_stem(path)) is not None]
        files = usual if len(usual) == 1 else files
    if len(files) == 1:
        return files[0]
    if files:
        listed = ", ".join(path.name for path in files[:4])
        problems.append(
            f"{content.folder}: found {len(files)} files that may be the mask: {listed}; expected one; remove the "
            f"others, or leave them out with data.ignored_names, such as ['{files[-1].name}']"
        )
    elif any(sop_class(path) == STRUCTURE_SET for path in files_of_kind(content.folder, "other", names.ignored_names)):
        problems.append(
            f"{content.folder}: the contours of this case are a DICOM structure set (RTSTRUCT), which medfed does not "
            "read; export them as DICOM SEG or NIfTI"
        )
    else:
        problems.append(
            f"{content.folder}: this case of DICOM images has no mask; expected one file in "
            f"{', '.join(VOLUME_SUFFIXES)} format or a DICOM SEG; add it, or leave the folder out with "
            "data.ignored_names"
        )
    return None


def _stem(path: Path) -> str:
    """Return the name of a file without the suffix of an image format or of DICOM."""
    ending = path.suffix
    return path.name[: -len(ending)] if ending.lower() in SUFFIXES else stem_of(path)
