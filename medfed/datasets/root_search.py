"""Find the folders of the sites, and refuse a folder that is a single site, or holds the folder of the sites."""

from __future__ import annotations

from pathlib import Path

from medfed.core.errors import UserError
from medfed.datasets.datalists import read_msd
from medfed.datasets.file_names import Listing, count_images, list_folder
from medfed.datasets.pairing import Found, NameSettings
from medfed.datasets.site_search import (
    IMAGE_FOLDERS,
    MASK_FOLDERS,
    PARTS,
    Roles,
    find_pairs,
    find_roles,
    holds_a_mask,
    pair_folders,
    share_names,
)


def find_site_folders(root: Path, names: NameSettings, ask: bool = False) -> Roles:
    """Find out whether the folders of the sites lie in folders of images and masks, and refuse the folder of one site.

    Args:
        root: the folder of the dataset.
        names: the names that the user has set.
        ask: whether a `root` with a single folder is refused if the folders in it look like sites.

    Returns:
        The folders of images and masks in `root` that hold the folders of the sites, such as `images/SITE`; empty if
        the folders of the sites lie directly in `root`.

    Raises:
        UserError: if `root` looks like the folder of a single site, or like the folder around the folder of the sites.
    """
    listing = list_folder(root, names.ignored_names)
    roles = _root_roles(listing, names)
    inner = [list_folder(path, names.ignored_names) for path in (roles.images, roles.masks) if path]
    is_site = any(content.files for content in inner) or (bool(inner) and not any(content.folders for content in inner))
    if listing.files and not is_site and not roles:
        is_site = not any(count_images(path, names.ignored_names) for path in listing.folders.values())
    if is_site or read_msd(root, names.ignored_names):
        what = f"the folders {' and '.join(content.folder.name for content in inner)}" if inner else "image files"
        raise UserError(
            f"{root}: this folder holds {what}, so it looks like a single site; expected a folder that contains one "
            f"folder per site; give {_parent(root)} instead, with the folders of the other sites in it"
        )
    question = roles.question or ("" if roles else _twin_folders(listing, names))
    if question:
        raise UserError(f"{root}: {question}")
    if roles.images and roles.masks:
        _refuse_other_folders(root, listing, roles, names)
    if ask and len(listing.folders) > 1 and all(name.casefold() in PARTS for name in listing.folders):
        raise UserError(
            f"{root}: found the folders {' and '.join(listing.folders)}, which look like parts of a split; expected "
            "one folder per site; put the parts into the folder of their site, or list the images in a datalist "
            f"(data.datalist) with the columns site and split; if they are sites, set data.sites: "
            f"[{', '.join(listing.folders)}]"
        )
    if ask and not roles and len(listing.folders) == 1:
        _ask_about_only_folder(root, next(iter(listing.folders.values())), names)
    return roles


def pair_inner_folder(images: Path, masks: Path, name: str, names: NameSettings) -> Found:
    """Pair the images and masks of a site whose folders lie in a folder of images and in one of masks.

    Args:
        images: folder that holds a folder of images for each site.
        masks: folder that holds a folder of masks for each site.
        name: name of the site.
        names: the names that the user has set.
    """
    for folder, other in ((images, masks), (masks, images)):
        if not (folder / name).is_dir():
            return Found({}, [f"{other / name}: there is no folder {name} in {folder}; add it, or remove this folder"])
    return pair_folders(images / name, masks / name, names)


def _root_roles(listing: Listing, names: NameSettings) -> Roles:
    """Return the roles of the folders in `root`. A site may be called "GT": then it holds pairs itself."""
    folders = {
        name: path for name, path in listing.folders.items()
        if not (_has_usual_name(name, names) and find_pairs(path, names).pairs)
    }
    return find_roles(Listing(listing.folder, listing.files, listing.unsupported, folders), names)


def _refuse_other_folders(root: Path, listing: Listing, roles: Roles, names: NameSettings) -> None:
    """Raise UserError if images lie beside the folders of images and masks that hold the folders of all sites."""
    for path in listing.folders.values():
        if path not in (roles.images, roles.masks) and count_images(path, names.ignored_names):
            assert roles.images and roles.masks
            images, masks = roles.images.name, roles.masks.name
            raise UserError(
                f"{root}: found {images}/ and {masks}/ with the folders of the sites, and {path.name}/ with other "
                f"images; expected the images of all sites in {images}/ and {masks}/; move those of {path.name} there, "
                f"or leave the folder out with data.ignored_names: [{path.name}]"
            )


def _ask_about_only_folder(root: Path, only: Path, names: NameSettings) -> None:
    """Raise UserError if the folders in the only folder in `root` look like sites: they hold folders of masks."""
    content = list_folder(only, names.ignored_names)
    sites = [
        path.name for path in content.folders.values() if find_roles(list_folder(path), names).masks
        and path.name.casefold() not in PARTS
    ]  # fmt: skip
    if len(sites) > 1 and not content.files and not find_roles(content, names):
        raise UserError(
            f"{root}: the folder {only.name} is the only one in it, and {sites[0]} and {sites[1]} in {only.name} look "
            f"like sites; expected the folder that contains the folders of the sites; give {only} instead; if "
            f"{only.name} is one site with folders of patients, set data.sites: [{only.name}]"
        )


def _twin_folders(listing: Listing, names: NameSettings) -> str:
    """Return the question which folder holds the masks, if two folders hold equal folders of files; "" if not."""
    if len(listing.folders) != 2 or any(find_pairs(path, names).pairs for path in listing.folders.values()):
        return ""
    first, second = (list_folder(path, names.ignored_names) for path in listing.folders.values())
    if first.files or second.files or len(first.folders) < 2 or set(first.folders) != set(second.folders):
        return ""
    if find_roles(first, names) or not all(share_names([first.folders[name], second.folders[name]])
                                           for name in first.folders):  # fmt: skip
        return ""
    if any(map(holds_a_mask, first.folders.values())):
        return ""
    (a, b), (c, d, *_) = listing.folders, first.folders
    return (
        f"found {a}/ and {b}/, both with the folders {c}/ and {d}/ and files of the same names; which holds the images "
        f"and which the masks? set data.image_folders and data.mask_folders: if {a} and {b} are the sites, such as "
        f"[{c}] and [{d}]; if {c} and {d} are the sites, such as [{a}] and [{b}]; if {c} and {d} are classes, use the "
        "dataset folder_classes (check it with --dataset folder_classes)"
    )


def _has_usual_name(name: str, names: NameSettings) -> bool:
    """Return whether a folder is called as folders of images or masks are."""
    words = (*IMAGE_FOLDERS, *MASK_FOLDERS, *names.image_folders, *names.mask_folders)
    return name.casefold() in {word.casefold() for word in words}


def _parent(root: Path) -> Path:
    """Return the folder around a folder, also if its path is relative."""
    return root.parent if root.name and root.parent.name else root.absolute().parent
