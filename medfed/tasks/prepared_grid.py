"""Metrics of masks on the prepared grid, the pixels that the network receives, for `evaluation.also_on: prepared`.

Papers often score the resized images, on which a distance has another number of pixels than in the file. Only the grid
differs from the metric of the same name. All prepared slices have the same size, so that distances can be averaged in
pixels; for a volume they are in voxels, with the distance 1 between two slices.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from medfed.metrics.mask_metric import ABSENT, MaskMetric, MaskPair, compute_mask_metrics
from medfed.metrics.masks.dice import Dice
from medfed.metrics.masks.hd import HausdorffDistance
from medfed.metrics.masks.hd95 import HausdorffDistance95
from medfed.metrics.masks.hd95_pooled import PooledHausdorffDistance95

UNIT = "voxels, network's grid"


class PreparedDice(Dice):
    name, label = "dice_prepared", "Dice on the network's grid"


class _PreparedDistance(MaskMetric):
    """A distance in voxels of the prepared grid; a missed structure has the diagonal of the prepared image."""

    unit, note = UNIT, ""

    def value_of_failure(self, masks: MaskPair) -> float:
        return masks.diagonal(in_voxels=True)


class PreparedHausdorffDistance(_PreparedDistance, HausdorffDistance):
    name = "hd_prepared"


class PreparedHausdorffDistance95(_PreparedDistance, HausdorffDistance95):
    name = "hd95_prepared"


class PreparedPooledHausdorffDistance95(_PreparedDistance, PooledHausdorffDistance95):
    name, unit = "hd95_pooled_prepared", f"{UNIT}, pooled"


PREPARED_METRICS: tuple[MaskMetric, ...] = (
    PreparedDice(),
    PreparedHausdorffDistance(),
    PreparedHausdorffDistance95(),
    PreparedPooledHausdorffDistance95(),
)


def prepared_scores(prediction: Tensor, reference: Tensor, scores: Mapping[str, object]) -> dict[str, object]:
    """Compute `PREPARED_METRICS` of one structure from 0/1 masks (S, S, D) on the prepared grid.

    All values are None if both masks are empty there or on the grid of the file (`scores`, from
    `compute_mask_metrics`); a structure may be smaller than a pixel of the prepared grid.
    """
    row = compute_mask_metrics(PREPARED_METRICS, prediction, reference, None)
    is_absent = ABSENT in (row["status"], scores["status"])
    return {metric.name: None if is_absent else row[metric.name] for metric in PREPARED_METRICS}
