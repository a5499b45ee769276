"""Find out which dataset a folder contains, so that `python -m medfed.data check FOLDER` needs no config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from medfed.core import registry
from medfed.core.errors import UserError
from medfed.core.files import note_absolute
from medfed.datasets import table
from medfed.datasets.base import Dataset
from medfed.datasets.collections.folder import Folder
from medfed.datasets.usual_layouts import find_patterns
from medfed.datasets.walk import walk

CLASSIFICATION: dict[str, Any] = {"image_size": 224, "standardise": "imagenet"}  # settings of own images with classes
_LAYOUT = re.compile(r"\b(?:image|mask|table)\b")  # settings that replace the recognised patterns, also of single sites


def recognise(root: Path, name: str | None = None) -> Dataset:
    """Find out which dataset a folder contains, and return this dataset with settings that fit the folder's files.

    The published collections are tried first (`Dataset.recognise`); any other folder is a `Folder` with the table in
    it, or with the first usual patterns that pair every image. A few images of each site decide on the number of image
    channels (`Dataset.with_stored_channels`).

    Args:
        root: folder of the dataset, or a table: a CSV file that lists the images.
        name: name of the only dataset to try, as in a config: a known name or the dotted name of a class. None tries
            all datasets.

    Raises:
        UserError: if there is no such folder or dataset, if several datasets fit, or if no usual pattern pairs every
            image; the message is then a table of what was tried.
    """
    return recognise_layout(root, name).with_stored_channels()


def recognise_layout(root: Path, name: str | None = None, settings: Mapping[str, Any] | None = None) -> Dataset:
    """Do what `recognise` does, but leave the number of image channels at its default.

    `settings` are the user's own: those that say where the files are replace the recognised patterns.
    """
    settings = settings or {}
    name = str(settings["name"]) if "name" in settings else name
    by_site = {key: value for key, value in settings.items() if key.split(".")[0] == "by_site"}
    has_layout = _LAYOUT.search(" ".join(settings.keys() - by_site.keys())) or _LAYOUT.search(str(by_site))
    if has_layout and root.is_dir() and name in (None, "folder"):
        return Folder(root=str(root), **(CLASSIFICATION if "{class" in str(settings.get("image", "")) else {}))
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
    files = walk(root, tuple(settings.get("ignored_names", ())))
    usual = find_patterns(files, tuple(settings.get("sites", ())))
    usual["ignored_names"] = (*settings.get("ignored_names", ()), *usual.get("ignored_names", ()))
    return Folder(root=str(root), **usual, **(CLASSIFICATION if "{class}" in usual["image"] else {}))


def _from_table(root: Path, name: str) -> Folder:
    """Return the dataset of a table."""
    dataset = Folder(root=str(root), table=name)
    return replace(dataset, **CLASSIFICATION) if dataset.classes else dataset
