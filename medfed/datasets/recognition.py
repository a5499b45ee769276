"""Find out which dataset a folder contains, so that `python -m medfed.data check FOLDER` needs no config."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from medfed.core import registry
from medfed.core.errors import UserError, UserErrors
from medfed.core.files import note_absolute
from medfed.datasets import table
from medfed.datasets.base import Dataset
from medfed.datasets.collections.folder import Folder
from medfed.datasets.unusual import describe_tried
from medfed.datasets.usual_layouts import (
    IMAGE_FOLDERS,
    MASK_FOLDERS,
    UNLABELLED,
    USUAL_WORDS,
    as_settings,
    candidates,
    doubt_about,
    odd_sites,
    try_layouts,
    with_named_folders,
    word_of,
)
from medfed.datasets.walk import Files, walk
from medfed.images.dicom_files import kind_of
from medfed.images.file_names import folded, outside_problem
from medfed.images.reading import suffix

CLASSIFICATION: dict[str, Any] = {"image_size": 224, "standardise": "imagenet"}  # settings of own images with classes
_LAYOUT = re.compile(r"\b(?:image|mask|table)\b")  # settings that replace the recognised patterns, also of single sites


def recognise(root: Path, name: str | None = None) -> Dataset:
    """Find out which dataset a folder contains, and return this dataset with settings that fit the folder's files.

    The published collections are tried first (`Dataset.recognise`); any other folder is a `Folder` with the table in
    it, or with the first usual patterns that pair every image. A few images of each site decide on the number of image
    channels (`Dataset.with_stored_channels`).

    Args:
        root: folder of the dataset, or a table: a CSV or JSON file that lists the images.
        name: name of the only dataset to try, as in a config: a known name or the dotted name of a class. None tries
            all datasets.

    Raises:
        UserError: if there is no such folder or dataset, if several datasets fit, or if no usual pattern pairs every
            image; the message is then a table of what was tried.
    """
    return recognise_layout(root, name).with_stored_channels()


def recognise_layout(root: Path, name: str | None = None, settings: Mapping[str, Any] | None = None) -> Dataset:
    """Do what `recognise` does, but leave the number of image channels at its default.

    `settings` are the user's own for `Folder`; `ignored_names`, `sites` and `follow_symlinks` decide which files count.
    """
    settings = settings or {}
    if root.is_file() and root.suffix.lower() in table.SUFFIXES:
        return _from_table(root.parent, root.name)
    if not root.is_dir():
        raise UserError(
            f"{root}: this is not a folder{note_absolute(root)}; expected a folder with images of two or more sites"
        )
    if name is not None and (named := registry.resolve("datasets", name)) is not Folder:
        return named.recognise(root) or named(root=str(root))
    classes = {known: registry.resolve("datasets", known) for known in registry.known_names("datasets")}
    fitting = {known: found for known, cls in classes.items() if not name and (found := cls.recognise(root))}
    if len(fitting) > 1:
        raise UserError(
            f"{root}: the files fit several datasets: {' and '.join(fitting)}; choose one with --dataset NAME"
        )
    if fitting:
        return fitting.popitem()[1]
    listings = [path for path in sorted(root.iterdir()) if path.is_file() and path.suffix.lower() in table.SUFFIXES]
    columns = {path.name: table.columns_of(path) for path in listings}
    tables = [path for path, names in columns.items() if {"site", "image"} <= names and names & {"mask", "class"}]
    if len(tables) > 1:
        raise UserError(
            f"{root}: the tables {' and '.join(tables)} both list images; expected one; check the one that you want: "
            f"python -m medfed.data check {root / tables[0]}"
        )
    if tables:
        return _from_table(root, tables[0])
    files = walk(root, tuple(settings.get("ignored_names", ())), bool(settings.get("follow_symlinks", False)))
    usual = find_patterns(files, tuple(settings.get("sites", ())))
    usual["ignored_names"] = (*settings.get("ignored_names", ()), *usual.get("ignored_names", ()))
    return Folder(root=str(root), **usual, **(CLASSIFICATION if "{class}" in usual["image"] else {}))


def block_for(root: Path, name: str | None, overrides: Mapping[str, object]) -> dict[str, object]:
    """Return the keys of the block `data` for a folder or table for which the user gives further settings.

    Settings that say where the files are, such as `image` or `by_site.A.mask`, replace the recognised patterns.
    """
    by_site = {key: value for key, value in overrides.items() if key.split(".")[0] == "by_site"}
    has_layout = _LAYOUT.search(" ".join(overrides.keys() - by_site.keys())) or _LAYOUT.search(str(by_site))
    name = str(overrides["name"]) if "name" in overrides else name
    if has_layout and root.is_dir() and name in (None, "folder"):
        has_classes = "{class" in str(overrides.get("image", ""))
        return {"name": "folder", "root": str(root), **(CLASSIFICATION if has_classes else {})}
    dataset = recognise_layout(root, name, overrides)
    default = type(dataset)(root="")
    values = {entry.name: getattr(dataset, entry.name) for entry in fields(dataset)}
    chosen = {key: value for key, value in values.items() if value != getattr(default, key)}
    name = registry.name_of("datasets", type(dataset))
    return {"name": name, **{key: list(value) if isinstance(value, tuple) else value for key, value in chosen.items()}}


def _from_table(root: Path, name: str) -> Folder:
    """Return the dataset of a table."""
    dataset = Folder(root=str(root), table=name)
    return replace(dataset, **CLASSIFICATION) if dataset.classes else dataset


def find_patterns(files: Files, sites: Sequence[str] = ()) -> dict[str, Any]:
    """Return the first usual patterns that pair every image, or that do so at each site, as settings of `data`.

    UserError with a table of what was tried if there are none. Names of sites that look like parts of a split, years or
    patients are refused, unless the user lists them in `sites`.
    """
    files = _without_documents(files)
    names = {part for path in (*files.images, *files.series) for part in path.split("/")[:-1]}
    unlabelled = tuple(sorted(name for name in names if folded(name) in UNLABELLED))
    files = files.without(unlabelled)
    ignored = {"ignored_names": unlabelled} if unlabelled else {}
    tried = try_layouts(files, candidates(files), sites)
    if tried and tried[0].fits and not doubt_about(tried[0], sites):
        return as_settings(with_named_folders(files, tried[0]).layout) | ignored
    at_site = {} if any(one.fits for one in tried) else _try_each_site(files, sites)
    if at_site:
        common = max(at_site.values(), key=[*at_site.values()].count)
        return common | ignored | {"by_site": {site: own for site, own in at_site.items() if own != common}}
    if files.outside:
        raise outside_problem(files.root / files.outside[0], files.root)
    raise UserErrors(describe_tried(files, tried, sites))


def _without_documents(files: Files) -> Files:
    """Return these files without those of unknown formats that lie in no folder of images or masks, such as LICENSE."""
    known = [path for path in files.images if suffix(path) or kind_of(files.root / path)]
    folders = {path.rpartition("/")[0] for path in known} - {""}

    def is_image(path: str) -> bool:
        folder = path.rpartition("/")[0]
        return folder in folders or word_of(folder.rpartition("/")[2]) in {*IMAGE_FOLDERS, *MASK_FOLDERS}

    images = (*known, *filter(is_image, {*files.images} - {*known}))
    return replace(files, images=tuple(sorted(images))) if known or files.slices else files


def _try_each_site(files: Files, sites: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the first patterns that pair every image of each folder in the root as settings; {} if one has none."""
    folders = sorted({path.split("/")[0] for path in (*files.images, *files.slices)})
    if len(folders) < 2 or any("/" not in path for path in files.images):
        return {}
    if not set(folders) <= set(sites) and (odd_sites(folders) or any(word_of(name) in USUAL_WORDS for name in folders)):
        return {}
    found = {}
    for folder in folders:
        inside = files.inside(folder)
        tried = try_layouts(inside, candidates(inside), (folder,))
        fitting = (one for one in tried if one.fits and one.layout.masks and set(one.sites()) == {folder})
        own = next((one for one in fitting if not doubt_about(one, (folder,))), None)
        if own is None:
            return {}
        found[folder] = as_settings(with_named_folders(inside, own).layout)
    return found
