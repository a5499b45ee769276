"""Find out which dataset a folder contains, so that `python -m medfed.data check FOLDER` needs no config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from itertools import groupby
from pathlib import Path

from medfed.core import registry
from medfed.core.errors import UserError
from medfed.core.files import note_absolute
from medfed.datasets import datalists
from medfed.datasets.base import Dataset

_LAYOUT_KEYS = ("image_folders", "mask_folders", "datalist")  # they replace the recognised layout
_NAME_KEYS = ("image_name", "mask_name", "one_site_per_case")  # so do these, if a name has a *


def recognise(root: Path, name: str | None = None) -> Dataset:
    """Find out which dataset a folder contains, and return this dataset with settings that fit the folder's files.

    `Dataset.recognise` of each dataset decides whether the folder has its layout: published collections are tried
    first, then datasets for any images in a particular layout, then datasets for any folder. The first that fits is
    taken. A few images of each site decide on the number of image channels (`Dataset.with_stored_channels`).

    Args:
        root: folder of the dataset, or a datalist: a CSV or JSON file that lists the images.
        name: name of the only dataset to try, as in a config: a known name or the dotted name of a class. If the folder
            does not have the dataset's layout, the dataset with default settings is returned. None tries all datasets.

    Raises:
        UserError: if there is no such folder or dataset, if no dataset fits, or if several datasets of the same
            `generality` fit.
    """
    return recognise_layout(root, name).with_stored_channels()


def recognise_layout(root: Path, name: str | None = None) -> Dataset:
    """Do what `recognise` does, but leave the number of image channels at its default."""
    if root.is_file() and root.suffix.lower() in datalists.SUFFIXES:
        return _from_datalist(root, name)
    if not root.is_dir():
        raise UserError(
            f"{root}: this is not a folder{note_absolute(root)}; expected a folder that contains one folder per site"
        )
    if name is not None:
        dataset_class = registry.resolve("datasets", name)
        return dataset_class.recognise(root) or dataset_class(root=str(root))
    classes = {candidate: registry.resolve("datasets", candidate) for candidate in registry.known_names("datasets")}
    by_generality = sorted(classes, key=lambda candidate: classes[candidate].generality)
    for _, level in groupby(by_generality, key=lambda candidate: classes[candidate].generality):
        recognised = {candidate: dataset for candidate in level if (dataset := classes[candidate].recognise(root))}
        if len(recognised) > 1:
            names = " and ".join(recognised)
            raise UserError(f"{root}: the files fit several datasets: {names}; choose one with --dataset NAME")
        if recognised:
            return recognised.popitem()[1]
    raise UserError(f"{root}: the files fit no known dataset; choose one with --dataset NAME")


def block_for(root: Path, name: str | None, overrides: Mapping[str, object]) -> dict[str, object]:
    """Return the keys of the block `data` for a folder or datalist for which the user gives further settings.

    These are `name`, `root` and what `recognise_layout` finds out, without what the settings in `overrides` replace.
    `name` is `folder` if no layout is recognised, or if only `folder` has one of these settings.
    """
    name = str(overrides["name"]) if "name" in overrides else name
    try:
        dataset = recognise_layout(root, name)
        if "sites" not in overrides:
            dataset.site_names()
    except UserError:
        if not overrides or not root.is_dir():
            raise
        return {"name": name or "folder", "root": str(root)}
    only_folder = overrides.keys() - _field_names(type(dataset)) & _field_names(registry.resolve("datasets", "folder"))
    if name is None and only_folder:
        return {"name": "folder", "root": str(root)}
    block: dict[str, object] = {}
    for entry in fields(dataset):
        value = getattr(dataset, entry.name)
        if value != (entry.default if entry.default_factory is MISSING else entry.default_factory()):
            block[entry.name] = list(value) if isinstance(value, tuple) else value
    describes_layout = overrides.keys() & _LAYOUT_KEYS or any("*" in str(overrides.get(key)) for key in _NAME_KEYS)
    if describes_layout and root.is_dir():
        block = {key: value for key, value in block.items() if key not in (*_LAYOUT_KEYS, *_NAME_KEYS)}
    return {"name": registry.name_of("datasets", type(dataset)), **block}


def _from_datalist(path: Path, name: str | None) -> Dataset:
    """Return the dataset `name` for a datalist; None chooses `folder` if the list has masks, else `folder_classes`."""
    rows = datalists.read_datalist(path)
    name = name or ("folder" if any(row.mask for row in rows) else "folder_classes")
    dataset_class = registry.resolve("datasets", name)
    if "datalist" not in _field_names(dataset_class):
        raise UserError(f"{path}: the dataset {name} reads no datalist; use --dataset folder or folder_classes")
    return dataset_class(root=str(path.parent), datalist=path.name)


def _field_names(dataset_class: type[Dataset]) -> set[str]:
    return {entry.name for entry in fields(dataset_class)}
