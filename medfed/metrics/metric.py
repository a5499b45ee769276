"""The description of a metric (its name, unit and format), from which tables, files and figures are made."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from medfed.core.bounds import STRICT, with_tuples
from medfed.core.errors import UserError
from medfed.core.mistakes import mistakes_of

PERCENT_OF_DIAGONAL = "% of diagonal"  # the length of the image's diagonal is 100
DISTANCE = f"mm or {PERCENT_OF_DIAGONAL}"  # unit of a distance: millimetres if the voxel size is known
DISTANCE_UNITS = {"mm": "mm", "percent_of_diagonal": PERCENT_OF_DIAGONAL}  # end of a column's name: unit
MAX_DECIMALS = 10
PROBABILITY = "p_"  # begins the name of a predicted probability of a class in tables of scores


class Metric(ABC):
    """Base class of all metrics, whose class attributes describe the metric; subclass `MaskMetric` or `ClassMetric`.

    Attributes:
        name: the metric's name in files, a Python identifier.
        label: the name in tables and figures.
        unit: "%" for a fraction, which is stored in [0, 1] and printed times 100; `DISTANCE` for a distance in mm or,
            without a voxel size, in percent of the image's diagonal; any other unit as text; "" for none.
        higher_is_better: whether a larger value is better.
        decimals: number of digits after the point when printed.
        limits: the smallest and largest possible value, as stored, for the axes of figures; None takes the limits of
            the values.
        note: a sentence that is printed with each table that shows the metric; "" for none.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    unit: ClassVar[str] = ""
    higher_is_better: ClassVar[bool] = True
    decimals: ClassVar[int] = 2
    limits: ClassVar[tuple[float, float] | None] = None
    note: ClassVar[str] = ""

    def missing_declarations(self) -> list[str]:
        """Return the names of the attributes that such a metric must define and this class does not."""
        return [name for name in ("name", "label") if not isinstance(getattr(self, name, None), str)]


def metric_columns(metric: Metric) -> dict[str, str]:
    """The units of a metric's columns, by name: a distance has one in mm and one in percent of the image's diagonal."""
    if metric.unit == DISTANCE:
        return {f"{metric.name}_{end}": unit for end, unit in DISTANCE_UNITS.items()}
    return {metric.name: metric.unit}


@contextmanager
def errors_of(metric: Metric) -> Iterator[None]:
    """Any error of a metric, whose code may be from outside medfed, becomes a UserError."""
    try:
        yield
    except Exception as error:
        raise UserError(
            f"metric '{metric.name}': {type(error).__name__}: {error}; correct it and continue with --resume, the "
            "model is saved"
        ) from error


class _Description(TypedDict):
    """The attributes of `Metric`, from which a metric can be shown without its code."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    name: str
    label: str
    unit: str
    higher_is_better: bool
    decimals: Annotated[int, Field(ge=0, le=MAX_DECIMALS)]
    limits: tuple[float, float] | None
    note: str


def describe_metric(metric: Metric) -> dict[str, Any]:
    """Return the attributes of `Metric` for `summary.json`."""
    entry = {name: getattr(metric, name) for name in _Description.__annotations__}
    return entry | {"limits": None if metric.limits is None else list(metric.limits)}


def metric_from_description(entry: Mapping[str, Any]) -> Metric:
    """Create a metric from `describe_metric`, which can be shown, but not computed."""
    metric = Metric()
    try:
        described = TypeAdapter(_Description).validate_python(with_tuples(entry))
    except ValidationError as error:
        mistakes = "; ".join(map(str, mistakes_of(error, entry)))
        raise ValueError(f"the metric {entry.get('name')!r}: {mistakes}") from None
    for name, value in described.items():
        setattr(metric, name, value)
    return metric


def check_declarations(metrics: Sequence[Metric], taken: Iterable[str]) -> None:
    """Check that every metric declares valid attributes, and that no column name occurs twice or is in `taken`."""
    known = set(taken)
    for metric in metrics:
        where = f"{type(metric).__module__}.{type(metric).__qualname__}"
        if missing := metric.missing_declarations():
            raise ValueError(f"{where}: does not define its {missing[0]}; add it to the class")
        try:
            metric_from_description(describe_metric(metric))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from None
        if not metric.name.isidentifier():
            raise ValueError(f"{where}: name {metric.name!r} is not a plain word; expected letters, digits and _")
        if metric.name.startswith(PROBABILITY):
            raise ValueError(
                f"{where}: name {metric.name!r} begins with {PROBABILITY}, as probabilities do; choose another"
            )
        for column in metric_columns(metric):
            if column in known:
                raise ValueError(f"{where}: its column '{column}' exists already; choose another name")
            known.add(column)
