"""The tasks of a scored bundle: cases are read and scored as medfed's own tasks do, and predicted by the bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.datasets.base import Dataset
from medfed.datasets.case import Case, Volume
from medfed.scoring.bundle_model import BundleModel
from medfed.tasks.classification import Classification, ImageSamples
from medfed.tasks.segmentation import Segmentation
from medfed.tasks.task import Match

UNNAMED = "foreground"  # the structure of a folder whose masks have no names
NEEDED = {True: ("segments images", "masks", "classes"), False: ("classifies images", "classes", "masks")}


@dataclass(frozen=True, kw_only=True)
class BundleSegmentation(Segmentation):
    """Segmentation whose masks a bundle predicts; `predicted_names` are the bundle's names of `structures`."""

    model: BundleModel
    predicted_names: tuple[str, ...]

    def predict_on_both_grids(
        self, network: nn.Module, volume: Volume, match: Match | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Predict with the bundle, on the file's grid only; `network` and `match` are ignored."""
        masks, probabilities = self.model.masks(volume.image, is_2d=volume.spacing_mm is None)
        stacked = torch.stack([probabilities[name] for name in self.predicted_names]) if probabilities else None
        return torch.stack([masks[name] for name in self.predicted_names]), stacked, None


@dataclass(frozen=True, kw_only=True)
class BundleClassification(Classification):
    """Classification whose class probabilities a bundle predicts."""

    model: BundleModel

    def probabilities(self, network: nn.Module, samples: ImageSamples, match: Match | None = None) -> Tensor:
        return self.model.probabilities([samples.read(case) for case in samples.cases])  # as they are in their files


BundleTask = BundleSegmentation | BundleClassification


def task_of_bundle(model: BundleModel, dataset: Dataset, named: Mapping[str, str]) -> tuple[BundleTask, dict[str, str]]:
    """Return the task that scores a bundle on a dataset, and the bundle's name of each label of the dataset.

    `named` has the bundle's names that differ; the others are assigned without regard to case, spaces, "-" and "_", and
    a folder's only unnamed structure to the bundle's only one. UserError for the other task, or if names are not clear.
    """
    if model.is_segmentation != bool(dataset.structures):
        does, needs, has = NEEDED[model.is_segmentation]
        raise UserError(
            f"{model.path}: the bundle {does}, but {dataset.root} has {has}; expected {needs}; choose "
            "other images or another bundle"
        )
    names = dataset.structures or dataset.classes
    assigned = _assign(names, tuple(model.names.values()), named, model, dataset)
    if model.is_segmentation:
        predicted = tuple(assigned[name] for name in names)
        return BundleSegmentation(names, model.channels, 0, model=model, predicted_names=predicted), assigned
    of_bundle = {name: own for own, name in assigned.items()}
    classes = tuple(of_bundle.get(name, name) for _, name in sorted(model.names.items()))
    return BundleClassification(classes, model.channels, 0, model=model), assigned


def with_labels_of(task: BundleTask, dataset: Dataset, cases: Sequence[Case]) -> list[Case]:
    """Return cases with the class numbers of the bundle, which may have its classes in another order."""
    if not isinstance(task, BundleClassification):
        return list(cases)
    return [replace(case, label=task.classes.index(dataset.classes[case.label or 0])) for case in cases]


def _assign(
    names: Sequence[str], known: Sequence[str], named: Mapping[str, str], model: BundleModel, dataset: Dataset
) -> dict[str, str]:
    """Return the bundle's name of each name of the dataset."""
    for own, predicted in named.items():
        if own not in names or predicted not in known:
            word, listed = (own, names) if own not in names else (predicted, known)
            source = dataset.root if own not in names else model.path
            raise UserError(f"--name {own}={predicted}: {source} has no '{word}'; expected one of {', '.join(listed)}")
    by_key = {_key(name): name for name in known}
    assigned = {name: named.get(name) or by_key.get(_key(name)) for name in names}
    if len(known) == len(names) == 1 and names[0] == UNNAMED:
        assigned[names[0]] = known[0]
    if unknown := [name for name, predicted in assigned.items() if predicted is None]:
        raise UserError(
            f"{model.path}: predicts {', '.join(known)}, and {dataset.root} has '{unknown[0]}'; say what it is in the "
            f"bundle, such as --name {unknown[0]}={known[0]}"
        )
    chosen = {name: predicted for name, predicted in assigned.items() if predicted is not None}
    if twice := [name for name, n in Counter(chosen.values()).items() if n > 1]:
        raise UserError(
            f"{model.path}: '{twice[0]}' would be compared with two structures or classes of {dataset.root}; say which "
            f"with --name OWN={twice[0]}"
        )
    return chosen


def _key(name: str) -> str:
    """Return a name without what spellings of the same name differ in."""
    return name.casefold().replace(" ", "").replace("_", "").replace("-", "")
