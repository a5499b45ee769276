"""Create the task of a dataset, or the task and scoring of a run from the files in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medfed.core.errors import UserError
from medfed.datasets.base import Dataset
from medfed.metrics.metric import Metric, metric_from_description
from medfed.tasks.classification import Classification
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.scoring import Scoring
from medfed.tasks.segmentation import Segmentation
from medfed.tasks.task import Task

TASKS: dict[str, type[Task]] = {task.name: task for task in (Segmentation, Classification)}


def task_of_dataset(dataset: Dataset, evaluation: Evaluation) -> Task:
    """Classification if the dataset has classes, otherwise segmentation; the dataset's folder must exist."""
    channels, size, standardised = dataset.channels, dataset.image_size, dataset.standardise
    if dataset.classes:
        return Classification(dataset.classes, channels, size, evaluation, standardised)
    return Segmentation(dataset.structures, channels, size, dataset.intensity_range, evaluation, standardised)


def task_of_images(images: Mapping[str, Any], image_size: int, evaluation: Evaluation) -> Task:
    """Create the task of a finished run from the entry "images" of its `summary.json`; no image is read. The entry has
    the number of channels, the classes or structures, the intensity range, and the standardisation."""
    channels, standardised = images["channels"], images["standardised"]
    if images["classes"]:
        return Classification(tuple(images["classes"]), channels, image_size, evaluation, standardised)
    scale = images["intensity_range"] and tuple(images["intensity_range"])
    return Segmentation(tuple(images["structures"]), channels, image_size, scale, evaluation, standardised)


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
