"""The table of scores: one row for each value of each test image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from medfed.metrics.metric import DISTANCE, PERCENT_OF_DIAGONAL, Metric, metric_columns

COLUMNS = ("role", "site", "patient", "image", "structure", "metric", "value", "unit", "status")
PROBABILITY = "p_"  # begins the metric of a predicted probability; the true class is then the `status`
IN_VOXELS_OF_FILE = "hd95_pooled_vx"  # without a voxel size it has no mean: the sizes of the images may differ
ROLES = ("seen", "unseen", "validation")
ALL = "all"  # the structure of a task without structures


def table_of(rows: Sequence[Mapping], metrics: Sequence[Metric]) -> pd.DataFrame:
    """The scores of test images as a table with the columns `COLUMNS`; fractions are in percent.

    Args:
        rows: one dict for each image, or for each structure of each image, as `Task.evaluate` returns them.
        metrics: of the task, in the order of the table. A distance has the unit "mm", or, of an image without a voxel
            size, "% of diagonal".
    """
    wide = pd.DataFrame(rows)
    if "label" in wide:
        wide = wide.assign(structure=ALL, status=wide.label)
        columns: dict[str, tuple[Any, pd.Series]] = {
            name: ("", wide[name]) for name in wide if name.startswith(PROBABILITY)
        }
    else:
        relative = [column.key for metric in metrics for column in metric_columns(metric) if column.key in wide]
        relative = [key for key in relative if key.endswith("_percent_of_diagonal")]
        has_mm = ~wide[relative].notna().any(axis=1) if len(wide) else None
        columns = {metric.name: _values_and_unit(wide, metric, has_mm) for metric in metrics if len(wide)}
    parts = [wide.assign(metric=name, value=value, unit=unit) for name, (unit, value) in columns.items()]
    return pd.concat(parts, ignore_index=True)[list(COLUMNS)] if parts else pd.DataFrame(columns=COLUMNS)


def _values_and_unit(wide: pd.DataFrame, metric: Metric, has_mm: pd.Series) -> tuple[str | np.ndarray, pd.Series]:
    """The unit and the values of a metric of masks, in the printed unit; `has_mm`: the voxel size is known."""
    values = [wide[column.key].astype(float) for column in metric_columns(metric)]
    if metric.unit == DISTANCE:
        return np.where(has_mm, "mm", PERCENT_OF_DIAGONAL), values[0].fillna(values[1])
    if metric.name == IN_VOXELS_OF_FILE:
        return metric.unit, values[0].where(has_mm)
    return metric.unit, values[0] * (100 if metric.unit == "%" else 1)
