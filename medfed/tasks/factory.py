"""Create the task of a dataset, or the task and scoring of a run from the files in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medfed.core.errors import UserError
from medfed.datasets.base import Dataset
from medfed.metrics.metric import Metric, metric_from_description
from medfed.tasks.classification import Classification
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.patch_segmentation import PatchSegmentation
from medfed.tasks.scoring import Scoring
from medfed.tasks.segmentation import Segmentation
from medfed.tasks.task import Task

TASKS: dict[str, type[Task]] = {task.name: task for task in (Segmentation, Classification)}


def task_of_dataset(dataset: Dataset, evaluation: Evaluation) -> Task:
    """Classification if the dataset has classes, otherwise segmentation; the dataset's folder must exist."""
    return _task(dataset, dataset.channels, dataset.classes, dataset.structures, dataset.intensity_range, evaluation)


def task_of_images(images: Mapping[str, Any], dataset: Dataset, evaluation: Evaluation) -> Task:
    """Create the task of a finished run from the entry "images" of its `summary.json`; no image is read."""
    scale = images["intensity_range"] and tuple(images["intensity_range"])
    classes, structures = tuple(images["classes"]), tuple(images["structures"])
    return _task(dataset, images["channels"], classes, structures, scale, evaluation)


def _task(
    dataset: Dataset,
    channels: int,
    classes: tuple[str, ...],
    structures: tuple[str, ...],
    intensity_range: tuple[float, float] | None,
    evaluation: Evaluation,
) -> Task:
    size, standardised = dataset.image_size, dataset.standardise
    if classes and dataset.patch_size:
        raise UserError("data.patch_size: is for masks of volumes, but the images have classes; remove it")
    if classes:
        return Classification(classes, channels, size, evaluation, standardised)
    settings = (structures, channels, size, intensity_range, evaluation, standardised)
    if dataset.patch_size and evaluation.boundary_distance:
        raise UserError("evaluation.boundary_distance: is for images and slices; set it to false with data.patch_size")
    if dataset.patch_size:
        return PatchSegmentation(*settings, patch_size=dataset.patch_size, spacing_mm=dataset.spacing_mm)
    return Segmentation(*settings)


def scoring_of(summary: Mapping[str, Any], source: object = "summary.json") -> Scoring:
    """Create the scoring of a run from its `summary.json`; `source` names the file in errors.

    Code from outside medfed is not imported. A metric from outside is created from its description in the summary
    (name, unit, limits ...), so that its stored values can be shown but not computed again.
    """
    name = summary.get("task")
    if not isinstance(name, str) or name not in TASKS:
        raise UserError(
            f"{source}: task: found {name!r}, expected one of {', '.join(TASKS)}; copy this file again from the "
            "original run"
        )
    task = TASKS[name]
    own_metrics = {metric.name: metric for metric in task.own_metrics}
    try:
        metrics: tuple[Metric, ...] = tuple(
            own_metrics.get(description["name"]) or metric_from_description(description)
            for description in summary["metrics"]
        )
        return Scoring(name, metrics, tuple(summary["chosen_metrics"]), summary["failure_dice"])
    except KeyError as error:
        raise UserError(f"{source}: found no key {error}; copy this file again from the original run") from error
    except (ValueError, TypeError) as error:
        raise UserError(f"{source}: metrics: {error}; copy this file again from the original run") from error
