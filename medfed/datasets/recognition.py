"""Find out which dataset a folder contains, so that `python -m medfed.data check FOLDER` needs no config."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from itertools import groupby
from pathlib import Path

from medfed.core import registry
from medfed.core.errors import UserError
from medfed.datasets import datalists
from medfed.datasets.base import Dataset


def recognise(root: Path, name: str | None = None) -> Dataset:
    """Find out which dataset a folder contains, and return this dataset with settings that fit the folder's files.

    The method `Dataset.recognise` of each dataset decides whether the folder has the layout of this dataset. Published
    collections are tried first, then datasets for any images in a particular layout, then datasets for any folder
    (`Dataset.generality`). The search ends as soon as a dataset fits.

    Args:
        root: folder of the dataset, or a datalist: a CSV or JSON file that lists the images.
        name: name of the only dataset to try, as in a config: a known name or the dotted name of a class. If the folder
            does not have the dataset's layout, the dataset with default settings is returned. None tries all datasets.

    Raises:
        UserError: if there is no such folder or dataset, if no dataset fits, or if several datasets of the same
            generality fit.
    """
    if root.is_file() and root.suffix.lower() in datalists.SUFFIXES:
        return _from_datalist(root, name)
    if not root.is_dir():
        raise UserError(f"{root}: this is not a folder; expected a folder that contains one folder per site")
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


def block_for(root: Path, name: str | None, overrides: Iterable[str]) -> dict[str, str]:
    """Return the first keys of the block `data` for a folder or datalist for which the user gives further settings.

    No file is opened, and the folder is not searched for a layout, because a setting may be needed to understand it.

    Args:
        root: folder of the dataset, or a datalist.
        name: name of the dataset. None takes `folder_classes` if all settings belong to it and the folder looks like
            one with classes, and otherwise `folder`.
        overrides: the settings that the user gives, such as "data.mask_threshold=128".

    Returns:
        The keys `name`, `root`, and for a datalist `datalist`.

    Raises:
        UserError: if there is no such folder or datalist.
    """
    if root.is_file() and root.suffix.lower() in datalists.SUFFIXES:
        name = registry.name_of("datasets", type(_from_datalist(root, name)))
        return {"name": name, "root": str(root.parent), "datalist": root.name}
    if not root.is_dir():
        raise UserError(f"{root}: this is not a folder; expected a folder that contains one folder per site")
    if name is None:
        classes = registry.resolve("datasets", "folder_classes")
        keys = {override.partition("=")[0].strip().removeprefix("data.") for override in overrides}
        has_keys = keys <= {field.name for field in fields(classes)}
        name = "folder_classes" if has_keys and classes.recognise(root) else "folder"
    return {"name": name, "root": str(root)}


def _from_datalist(path: Path, name: str | None) -> Dataset:
    """Return the dataset that reads a datalist: with masks if the list has some, otherwise with classes."""
    rows = datalists.read_datalist(path)
    name = name or ("folder" if any(row.mask for row in rows) else "folder_classes")
    dataset_class = registry.resolve("datasets", name)
    if "datalist" not in {field.name for field in fields(dataset_class)}:
        raise UserError(f"{path}: the dataset {name} reads no datalist; use --dataset folder or folder_classes")
    return dataset_class(root=str(path.parent), datalist=path.name).with_stored_channels()
