"""Find the folders of the sites, and refuse a folder that is a single site, or holds the folder of the sites."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from medfed.core.errors import UserError
from medfed.datasets.datalists import read_msd
from medfed.datasets.file_names import Listing, count_images, list_folder
from medfed.datasets.folder_questions import (
    fixed_names,
    folders_by_files,
    has_word,
    holds_a_mask,
    share_names,
    sites_in_two_folders,
)
from medfed.datasets.pairing import Found, NameSettings
from medfed.datasets.part_names import are_patients, are_years, is_part
from medfed.datasets.site_search import (
    IMAGE_FOLDERS,
    MASK_FOLDERS,
    Roles,
    find_pairs,
    find_roles,
    pair_folders,
)

MAX_LISTED = 8  # folders that a message names


def find_site_folders(root: Path, names: NameSettings, ask: bool = False) -> Roles:
    """Return the folders of images and masks in `root` that hold the folders of the sites, such as `images/SITE`.

    Both are None if the sites lie directly in `root`. UserError if `root` looks like the folder of a single site; with
    `ask`, also if it looks like the folder around that of the sites, or if the sites look like parts of a split.
    """
    listing = list_folder(root, names.ignored_names)
    roles = _root_roles(listing, names)
    both = (roles.images, roles.masks) if roles else folders_by_files(listing, names) or ()
    inner = [list_folder(path, names.ignored_names) for path in both if path]
    is_site = any(content.files for content in inner) or (bool(inner) and not any(content.folders for content in inner))
    if listing.files and not is_site and not roles:
        is_site = not any(count_images(path, names.ignored_names) for path in listing.folders.values())
    if is_site or read_msd(root, names.ignored_names, names.links_inside):
        what = f"the folders {' and '.join(content.folder.name for content in inner)}" if inner else "image files"
        raise UserError(
            f"{root}: this folder holds {what}, so it looks like a single site; expected a folder that contains one "
            f"folder per site; give {_parent(root)} instead, with the folders of the other sites in it; if the images "
            "of several sites are mixed here, list them with their sites in a table (data.datalist)"
        )
    if ask and not roles and not listing.files:
        _refuse_folder_around_sites(root, listing, names)
    if ask:
        refuse_parts(root, dict.fromkeys(name for content in inner or [listing] for name in content.folders))
    question = roles.question
    if not roles:
        question = _twin_folders(listing, names) or _sites_in_two_folders(listing, names)
    if question:
        raise UserError(f"{root}: {question}")
    if roles.images and roles.masks:
        _refuse_other_folders(root, listing, roles, names)
    return roles


def refuse_parts(root: Path, folders: Iterable[str]) -> None:
    """Raise UserError if the folders where sites are expected are called as parts of a split, years or patients."""
    listed = list(folders)
    kind = "years" if are_years(listed) else "patients" if are_patients(listed) else "parts of a split"
    parts = [name for name in listed if is_part(name)] if kind == "parts of a split" else listed
    if not parts:
        return
    *first, last = parts if len(parts) <= MAX_LISTED else [*parts[:2], f"{len(parts) - 2} more"]
    description = (
        f"the folders {', '.join(first)} and {last}, which look like {kind}"
        if first
        else f"the folder {last}, which looks like a part of a split"
    )
    confirmed = [repr(name) if name.isdecimal() else name for name in listed[:MAX_LISTED]]
    confirmed += [f"... (all {len(listed)} names)"] if len(listed) > MAX_LISTED else []
    raise UserError(
        f"{root}: found {description}; expected one folder per site; if all images in "
        f"{f'{root} are' if parts == listed else 'these are'} of one hospital, move "
        f"{f'everything in {root}' if parts == listed else 'these folders'} into one folder with its name; if folders "
        f"of hospitals lie in the parts, move each of them into a folder for the hospital, as HOSPITAL/{parts[0]}; or "
        "list the images in a datalist (data.datalist) with the columns site and split; if they are sites, set "
        f"data.sites: [{', '.join(confirmed)}]"
    )


def pair_inner_folder(images: Path, masks: Path, name: str, names: NameSettings) -> Found:
    """Pair the images and masks of the site `name`, whose folders lie in a folder of images and in one of masks."""
    for folder, other in ((images, masks), (masks, images)):
        if not (folder / name).is_dir():
            return Found({}, [f"{other / name}: there is no folder {name} in {folder}; add it, or remove this folder"])
    return pair_folders(images / name, masks / name, names)


def _root_roles(listing: Listing, names: NameSettings) -> Roles:
    """Return the roles of the folders in `root`. A site may be called "GT": then it holds pairs itself."""
    folders = {
        name: path
        for name, path in listing.folders.items()
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


def _refuse_folder_around_sites(root: Path, listing: Listing, names: NameSettings) -> None:
    """Raise UserError if a single folder in `root` holds images, and the folders in it look like sites.

    They may also lie some folders deeper, as in `data/train/SITE`.
    """
    outer, content = root, listing
    while len(holders := [path for path in content.folders.values() if count_images(path, names.ignored_names)]) == 1:
        outer, content = holders[0], list_folder(holders[0], names.ignored_names)
        if content.files or find_roles(content, names):
            return
    if outer == root or folders_by_files(content, names):
        return
    if len(holders) > 1 and all(is_part(path.name) for path in holders):
        if any(_looks_like_sites(list_folder(path, names.ignored_names), names) for path in holders):
            refuse_parts(outer, (path.name for path in holders))
        return
    if sites := _looks_like_sites(content, names):
        only = next(path for path in (outer, *outer.parents) if path.parent == root)
        raise UserError(
            f"{root}: the folder {only.name} is the only one in it that holds images, and {sites[0]} and {sites[1]} in "
            f"{outer.relative_to(root)} look like sites; expected the folder that contains the folders of the sites; "
            f"give {outer} instead; if {only.name} is one site with folders of patients, set data.sites: [{only.name}]"
        )


def _looks_like_sites(content: Listing, names: NameSettings) -> list[str]:
    """Return the names of the folders with a folder of masks or several pairs; [] if there are fewer than two."""
    if content.files or find_roles(content, names):
        return []
    sites = [
        path.name
        for path in content.folders.values()
        if not is_part(path.name)
        and (find_roles(list_folder(path, names.ignored_names), names).masks or len(find_pairs(path, names).pairs) > 1)
    ]
    return sites if len(sites) > 1 else []


def _twin_folders(listing: Listing, names: NameSettings) -> str:
    """Return the question which folder holds the masks, if two folders hold equal folders of files; "" if not."""
    if len(listing.folders) != 2 or any(find_pairs(path, names).pairs for path in listing.folders.values()):
        return ""
    first, second = (list_folder(path, names.ignored_names) for path in listing.folders.values())
    if first.files or second.files or len(first.folders) < 2 or set(first.folders) != set(second.folders):
        return ""
    if any(map(has_word, first.folders)) or any(list_folder(path).folders for path in first.folders.values()):
        return ""
    if find_roles(first, names) or not all(
        share_names([first.folders[name], second.folders[name]]) for name in first.folders
    ):
        return ""
    if any(map(holds_a_mask, first.folders.values())):
        return ""
    (a, b), (c, d, *_) = listing.folders, first.folders
    return (
        f"found {a}/ and {b}/, both with the folders {c}/ and {d}/ and files of the same names; which holds the images "
        f"and which the masks? set data.image_folders and data.mask_folders: if {a} and {b} are the sites, such as "
        f"[{c}] and [{d}]; if {c} and {d} are the sites, such as [{a}] and [{b}]"
        f"{fixed_names(list(first.folders.values()))}; if {c} and {d} are classes, use the dataset folder_classes "
        "(check it with --dataset folder_classes)"
    )


def _sites_in_two_folders(listing: Listing, names: NameSettings) -> str:
    """Return the problem that a site has a folder of images and one of masks directly in `root`; "" if not."""
    both = sites_in_two_folders(name for name, path in listing.folders.items() if list_folder(path).files)
    if both is None or any(find_pairs(listing.folders[name], names).pairs for name in both[:2]):
        return ""
    images, masks, site = both
    place = f"HOSPITAL/{site}" if is_part(site) else site
    return (
        f"found {images}/ and {masks}/, which look like the images and masks of a site; expected one folder per site; "
        f"move them to {place}/images and {place}/masks, or list the images in a table (data.datalist)"
    )


def _has_usual_name(name: str, names: NameSettings) -> bool:
    """Return whether a folder is called as folders of images or masks are."""
    words = (*IMAGE_FOLDERS, *MASK_FOLDERS, *names.image_folders, *names.mask_folders)
    return name.casefold() in {word.casefold() for word in words}


def _parent(root: Path) -> Path:
    """Return the folder around a folder, also if its path is relative."""
    return root.parent if root.name and root.parent.name else root.absolute().parent
