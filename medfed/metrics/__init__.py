"""Metrics for segmentation and classification, and the rules for summaries over patients, sites and methods.

`compute_mask_metrics` computes the metrics of two masks, `compute_class_metric` one of classified images. To write a
metric, inherit from `MaskMetric` or `ClassMetric`.

>>> import numpy as np
>>> from medfed.metrics import AreaUnderROC, Dice, HausdorffDistance, compute_class_metric, compute_mask_metrics
>>> prediction, reference = np.zeros((2, 32, 32, 1), dtype=bool)
>>> prediction[8:16, 8:16], reference[8:16, 8:18] = True, True
>>> scores = compute_mask_metrics([Dice(), HausdorffDistance()], prediction, reference, spacing_mm=(1.0, 0.5, 3.0))
>>> round(scores["dice"], 3), scores["hd_mm"], scores["status"]
(0.889, 1.0, 'ok')
>>> compute_class_metric(AreaUnderROC(), np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]]), np.array([0, 0, 1]))
1.0
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from medfed.core.lazy import lazy_names

if TYPE_CHECKING:
    from medfed.metrics.class_metric import ClassMetric as ClassMetric
    from medfed.metrics.class_metric import compute_class_metric as compute_class_metric
    from medfed.metrics.class_metric import jackknife_values as jackknife_values
    from medfed.metrics.classes.accuracy import Accuracy as Accuracy
    from medfed.metrics.classes.auroc import AreaUnderROC as AreaUnderROC
    from medfed.metrics.classes.balanced_accuracy import BalancedAccuracy as BalancedAccuracy
    from medfed.metrics.classes.ece import ExpectedCalibrationError as ExpectedCalibrationError
    from medfed.metrics.mask_metric import MaskMetric as MaskMetric
    from medfed.metrics.mask_metric import MaskPair as MaskPair
    from medfed.metrics.mask_metric import compute_mask_metrics as compute_mask_metrics
    from medfed.metrics.masks.assd import AverageSurfaceDistance as AverageSurfaceDistance
    from medfed.metrics.masks.dice import Dice as Dice
    from medfed.metrics.masks.hd import HausdorffDistance as HausdorffDistance
    from medfed.metrics.masks.hd95 import HausdorffDistance95 as HausdorffDistance95
    from medfed.metrics.masks.hd95_pooled import PooledHausdorffDistance95 as PooledHausdorffDistance95
    from medfed.metrics.masks.mask_ece import MaskCalibrationError as MaskCalibrationError
    from medfed.metrics.metric import Metric as Metric
    from medfed.metrics.ratio import vertical_ratio as vertical_ratio
    from medfed.metrics.significance import wilcoxon_test as wilcoxon_test

__getattr__, __dir__, __all__ = lazy_names(__name__)
