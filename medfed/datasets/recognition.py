"""Recognise the dataset in a folder, so that `python -m medfed.data check FOLDER` needs no config."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from medfed.core import registry
from medfed.core.errors import UserError
from medfed.datasets.base import Dataset


def recognise(root: Path, name: str | None = None) -> Dataset:
    """The dataset whose layout a folder has.

    Every dataset file is asked (`Dataset.recognise`), those of the lowest `generality` first; the first level at which
    one recognises the folder decides.

    Args:
        root: an existing folder.
        name: a dataset as a config names it, also a dotted name; then no other dataset is asked.

    Raises:
        UserError: if there is no such folder or dataset, or if several datasets of one level recognise the folder.
    """
    if not root.is_dir():
        raise UserError(f"{root}: is no folder; expected one with a folder for each site")
    if name is not None:
        dataset_class = registry.resolve("datasets", name)
        return dataset_class.recognise(root) or dataset_class(root=str(root))
    classes = {known: registry.resolve("datasets", known) for known in registry.known_names("datasets")}
    by_generality = sorted(classes, key=lambda known: classes[known].generality)
    for _, level in groupby(by_generality, key=lambda known: classes[known].generality):
        recognised = {known: dataset for known in level if (dataset := classes[known].recognise(root))}
        if len(recognised) > 1:
            raise UserError(f"{root}: has the layout of {' and of '.join(recognised)}; choose one with --dataset NAME")
        if recognised:
            return recognised.popitem()[1]
    raise UserError(f"{root}: has the layout of no known dataset; choose one with --dataset NAME")
