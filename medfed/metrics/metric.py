"""What every metric declares: how its values are named, printed and compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

DISTANCE = "mm or px"  # the unit of a distance: millimetres where the voxel size is known, else pixels
DISTANCE_UNITS = ("mm", "px")
MAX_DECIMALS = 10
DECLARED_FIELDS = ("name", "label", "unit", "higher_is_better", "decimals", "limits", "note", "in_voxels")


class Metric:
    """The declaration of a metric. Subclass `MaskMetric` or `ClassMetric`, which add the function.

    name: the metric's name in files: a plain word. A distance has one column per unit, `NAME_mm` and `NAME_px`.
    label: the name in tables and figures.
    unit: "%" for fractions, which are stored in [0, 1] and printed times 100; DISTANCE; another unit, or "" for none.
    higher_is_better: whether a larger value is a better one.
    decimals: digits after the point, as printed.
    limits: the smallest and largest value, as stored, for the axes of figures; None takes those of the values.
    note: a sentence below each table that shows the metric; "" for none.
    in_voxels: for a distance, the column that figures show where cases have different units; "" for none.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    unit: ClassVar[str] = ""
    higher_is_better: ClassVar[bool] = True
    decimals: ClassVar[int] = 2
    limits: ClassVar[tuple[float, float] | None] = None
    note: ClassVar[str] = ""
    in_voxels: ClassVar[str] = ""

    def missing_declarations(self) -> list[str]:
        """The names of what a metric must declare and this one does not."""
        return [name for name in ("name", "label") if not isinstance(getattr(self, name, None), str)]


@dataclass(frozen=True)
class Column:
    """A metric in one unit: a column of `cases.csv`, a block of a comparison, an axis of a figure."""

    key: str
    unit: str
    metric: Metric

    @property
    def scale(self) -> float:
        """The factor from stored to printed values."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def title(self) -> str:
        """Such as `HD95 (mm)`; a fraction has no unit, as axes show it from 0 to 1."""
        return f"{self.metric.label} ({self.unit})" if self.unit not in ("", "%") else self.metric.label


def metric_columns(metric: Metric) -> tuple[Column, ...]:
    """One column, or for a distance one column per unit."""
    if metric.unit == DISTANCE:
        return tuple(Column(f"{metric.name}_{unit}", unit, metric) for unit in DISTANCE_UNITS)
    return (Column(metric.name, metric.unit, metric),)


def all_columns(metrics: Iterable[Metric]) -> tuple[Column, ...]:
    """The columns in the order of `cases.csv`: of neighbouring distances first all in mm, then all in px."""
    found: list[Column] = []
    for _, group in groupby(metrics, key=lambda metric: metric.unit == DISTANCE):
        of_metrics = [metric_columns(metric) for metric in group]
        found += [column for of_unit in zip(*of_metrics, strict=True) for column in of_unit]
    return tuple(found)


def describe_metric(metric: Metric) -> dict[str, Any]:
    """The declaration as plain values, for `summary.json`: a reader then needs no code of the metric."""
    facts = {name: getattr(metric, name) for name in DECLARED_FIELDS}
    return facts | {"limits": None if metric.limits is None else list(metric.limits)}


def metric_from_description(facts: Mapping[str, Any]) -> Metric:
    """The declaration of a metric whose code is not needed, from what `described` returned.

    Raises:
        ValueError: if an entry is missing or of another type.
    """
    metric = Metric()
    kinds = {"higher_is_better": bool, "decimals": int}
    for name in DECLARED_FIELDS:
        value = facts.get(name)
        if name == "limits":
            value = None if value is None else tuple(float(end) for end in value)
            if value is not None and (len(value) != 2 or not all(map(math.isfinite, value))):
                raise ValueError(f"the metric {facts.get('name')!r} has limits {value}; expected two finite numbers")
        elif name == "decimals" and (type(value) is not int or not 0 <= value <= MAX_DECIMALS):
            raise ValueError(f"the metric {facts.get('name')!r} has decimals {value!r}; expected 0 to {MAX_DECIMALS}")
        elif not isinstance(value, kinds.get(name, str)):
            raise ValueError(f"the metric {facts.get('name')!r} has {name} {value!r}; expected "
                             f"{kinds.get(name, str).__name__}")
        object.__setattr__(metric, name, value)
    return metric


def check_declarations(metrics: Sequence[Metric], taken: Iterable[str]) -> None:
    """Raise ValueError unless every metric declares what it must and no two columns have one name.

    Args:
        taken: names of columns that are not metrics.
    """
    known = set(taken)
    for metric in metrics:
        where = f"{type(metric).__module__}.{type(metric).__qualname__}"
        if missing := metric.missing_declarations():
            raise ValueError(f"{where}: declares no {missing[0]}; add it to the class")
        try:
            metric_from_description(describe_metric(metric))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from None
        if not metric.name.isidentifier():
            raise ValueError(f"{where}: name {metric.name!r} is no plain word; expected letters, digits and _")
        for column in metric_columns(metric):
            if column.key in known:
                raise ValueError(f"{where}: its column '{column.key}' exists already; choose another name")
            known.add(column.key)
