"""Dice coefficient of two masks."""

from __future__ import annotations

from medfed.metrics.mask_metric import MaskMetric, MaskPair


class Dice(MaskMetric):
    """Dice coefficient of a prediction A and a reference B, 2 |A and B| / (|A| + |B|), in [0, 1].

    Example:
        >>> import numpy as np
        >>> from medfed.metrics.mask_metric import compute_mask_metrics
        >>> prediction, reference = np.zeros((4, 4, 1)), np.zeros((4, 4, 1))
        >>> prediction[:2], reference[1:3] = 1, 1
        >>> compute_mask_metrics([Dice()], prediction, reference, spacing_mm=None)
        {'dice': 0.5, 'status': 'ok'}
    """

    name = "dice"
    label = "Dice"
    unit = "%"
    higher_is_better = True
    limits = (0.0, 1.0)
    worst = 0.0

    def value(self, masks: MaskPair) -> float:
        """Return the Dice coefficient of two masks: twice their common voxels, divided by the sum of their voxels.

        Args:
            masks: the predicted mask and the true mask (reference), each with at least one voxel.

        Returns:
            A number in [0, 1]: 1 for equal masks, 0 for masks without a common voxel.
        """
        size = int(masks.prediction.sum()) + int(masks.reference.sum())
        return 2 * int((masks.prediction & masks.reference).sum()) / size
