"""The Dice coefficient: the overlap of two masks, 2|A and B| / (|A| + |B|)."""

from __future__ import annotations

from medfed.metrics.mask_metric import MaskMetric, MaskPair


class Dice(MaskMetric):
    name = "dice"
    label = "Dice"
    unit = "%"
    higher_is_better = True
    limits = (0.0, 1.0)
    worst = 0.0

    def value(self, masks: MaskPair) -> float:
        """In [0, 1]."""
        size = int(masks.prediction.sum()) + int(masks.reference.sum())
        return 2 * int((masks.prediction & masks.reference).sum()) / size
