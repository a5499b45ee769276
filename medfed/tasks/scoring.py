"""The metrics of a task, and which of them each table and figure shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from medfed.metrics.classes.accuracy import Accuracy
from medfed.metrics.classes.auroc import AreaUnderROC
from medfed.metrics.classes.balanced_accuracy import BalancedAccuracy
from medfed.metrics.classes.ece import ExpectedCalibrationError
from medfed.metrics.masks.assd import AverageSurfaceDistance
from medfed.metrics.masks.dice import Dice
from medfed.metrics.masks.hd import HausdorffDistance
from medfed.metrics.masks.hd95 import HausdorffDistance95
from medfed.metrics.masks.hd95_pooled import PooledHausdorffDistance95
from medfed.metrics.masks.mask_ece import MaskCalibrationError
from medfed.metrics.metric import PERCENT_OF_DIAGONAL, Metric, check_declarations, describe_metric

SEGMENTATION, CLASSIFICATION = "segmentation", "classification"
RUN_TABLE, COMPARISON, CARD, CASES = "run_table", "comparison", "card", "cases"
LOW_DICE, MISSED_SHARE, FALSE_ALARM_SHARE = SHARES = ("low_dice", "missed", "false_alarm")
FAILURES = {LOW_DICE: "Dice < {:g}", MISSED_SHARE: "missed", FALSE_ALARM_SHARE: "false alarm"}  # titles of the shares
MASK_METRICS: tuple[Metric, ...] = (
    Dice(),
    HausdorffDistance(),
    HausdorffDistance95(),
    AverageSurfaceDistance(),
    PooledHausdorffDistance95(),
    MaskCalibrationError(),
)
CLASS_METRICS: tuple[Metric, ...] = (Accuracy(), BalancedAccuracy(), AreaUnderROC(), ExpectedCalibrationError())
VIEWS: dict[str, dict[str, tuple[str, ...]]] = {
    SEGMENTATION: {
        RUN_TABLE: ("dice", "hd95"),
        COMPARISON: ("dice", "hd95", "hd", "ece"),
        CARD: ("dice", "hd95", "ece"),
        CASES: ("dice", "hd95"),
    },
    CLASSIFICATION: {
        RUN_TABLE: ("accuracy", "auroc", "balanced_accuracy", "ece"),
        COMPARISON: ("accuracy", "auroc"),
        CARD: ("accuracy", "auroc", "balanced_accuracy", "ece"),
        CASES: (),
    },
}
MASK_NOTES = (
    "A missed organ or a false alarm counts as Dice 0 and as a distance of the image diagonal; a structure that is "
    "absent from reference and prediction is left out",
    f"A distance is in mm if the image file states its voxel size, and otherwise in {PERCENT_OF_DIAGONAL} of the "
    "image, because the sizes of the images may differ",
)


@dataclass(frozen=True)
class Scoring:
    """The metrics of a run, and which of them each output shows."""

    task: str  # SEGMENTATION or CLASSIFICATION
    metrics: tuple[Metric, ...]  # in the order of the tables; the first is the task's main metric
    chosen: tuple[str, ...] = ()  # by `evaluation.metrics` and `evaluation.also_on`; every table and figure shows them
    failure_dice: float | None = None  # a Dice below it, in (0, 1], is a failure; None for classification

    def __post_init__(self) -> None:
        check_declarations(self.metrics, SHARES)
        if self.has_structures and not (isinstance(self.failure_dice, float | int) and 0 < self.failure_dice <= 1):
            raise ValueError(f"failure_dice: found {self.failure_dice!r}, expected a number in (0, 1]")

    @property
    def has_structures(self) -> bool:
        """Whether there are scores for several structures of an image."""
        return self.task == SEGMENTATION

    @property
    def by_name(self) -> dict[str, Metric]:
        return {metric.name: metric for metric in self.metrics}

    def metrics_in(self, view: str) -> tuple[Metric, ...]:
        """The metrics that one kind of output shows: those of the task, then `chosen`.

        `view` is "run_table" (one run), "comparison" (several methods), "card" (a bundle's model card) or "cases" (box
        plots of single images).
        """
        names = dict.fromkeys((*VIEWS[self.task][view], *self.chosen))
        return tuple(self.by_name[name] for name in names if name in self.by_name)

    def notes_in(self, view: str) -> tuple[str, ...]:
        """Notes of the metrics that a table shows, such as the definition of HD95, then of the task; no full stops."""
        notes = (metric.note for metric in self.metrics_in(view) if metric.note)
        return tuple(dict.fromkeys((*notes, *(MASK_NOTES if self.has_structures else ()))))

    def describe(self) -> dict[str, Any]:
        """The entries of `summary.json` from which `medfed.tasks.factory.scoring_of` makes an equal object."""
        described = {"task": self.task, "metrics": [describe_metric(metric) for metric in self.metrics]}
        return described | {"chosen_metrics": list(self.chosen), "failure_dice": self.failure_dice}
