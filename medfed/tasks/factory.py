"""From a dataset, or from what a run's folder says, to its task."""

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
    """What is learned from a dataset: its classes, or its structures."""
    channels, size, standardised = dataset.channels, dataset.image_size, dataset.standardise
    if dataset.classes:
        return Classification(dataset.classes, channels, size, evaluation, standardised)
    return Segmentation(dataset.structures, channels, size, dataset.intensity_range, evaluation, standardised)


def task_of_images(images: Mapping[str, Any], image_size: int, evaluation: Evaluation) -> Task:
    """The task of a run whose images are not here.

    Args:
        images: as `summary.json` describes them (`describe_images`).
    """
    channels, standardised = images["channels"], images["standardised"]
    if images.get("classes"):  # runs of older versions have no such entry
        return Classification(tuple(images["classes"]), channels, image_size, evaluation, standardised)
    scale = images["intensity_range"] and tuple(images["intensity_range"])
    return Segmentation(tuple(images["structures"]), channels, image_size, scale, evaluation, standardised)


def scoring_of(summary: Mapping[str, Any], source: object = "summary.json") -> Scoring:
    """What the results of a run are, from its `summary.json`.

    A metric from outside medfed is known by its declaration alone: no code that a run's folder names is imported.

    Args:
        source: what to call the file in a message.

    Raises:
        UserError: if the summary names an unknown task, or declares a metric that is none.
    """
    name = summary.get("task", Segmentation.name)  # older runs name no task, and were of masks
    if not isinstance(name, str) or name not in TASKS:
        raise UserError(f"{source}: task: found {name!r}, expected one of {', '.join(TASKS)}; read it with the version "
                        "of medfed that wrote it")
    task = TASKS[name]
    declared = summary.get("metrics")
    if declared is None:
        return task.scoring_class(task.own_metrics)
    own = {metric.name: metric for metric in task.own_metrics}
    try:
        metrics: tuple[Metric, ...] = tuple(
            own.get(facts["name"]) or metric_from_description(facts) for facts in declared
        )
        return task.scoring_class(metrics, tuple(summary.get("chosen_metrics", ())))
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{source}: metrics: {error}; copy the run again from where it was made") from error

