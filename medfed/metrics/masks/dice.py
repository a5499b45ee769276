"""Dice coefficient of two masks."""

from __future__ import annotations

from medfed.metrics.mask_metric import MaskMetric, MaskPair


class Dice(MaskMetric):
    """Dice coefficient of a prediction A and a reference B, 2 |A and B| / (|A| + |B|), in [0, 1]."""

    name = "dice"
    label = "Dice"
    unit = "%"
    limits = (0.0, 1.0)
    worst = 0.0

    def value(self, masks: MaskPair) -> float:
        size = int(masks.prediction.sum()) + int(masks.reference.sum())
        return 2 * int((masks.prediction & masks.reference).sum()) / size
