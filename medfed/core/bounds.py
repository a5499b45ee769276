"""Ranges and rules that a field's annotation declares, checked when a dataclass is made.

>>> @dataclass(frozen=True)
... class Settings:
...     weight: Annotated[float, Interval(ge=0)] = 0.1
...     average: Literal["examples", "uniform"] = "examples"
...
...     def __post_init__(self) -> None:
...         check(self)
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Interval:
    """Limits of a number: `ge` and `le` belong to the interval, `gt` and `lt` do not. NaN lies in no interval."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None

    def holds(self, value: Any) -> bool:
        """Whether the value is a number inside the limits."""
        return (
            isinstance(value, int | float)
            and (self.gt is None or value > self.gt)
            and (self.ge is None or value >= self.ge)
            and (self.lt is None or value < self.lt)
            and (self.le is None or value <= self.le)
        )

    @property
    def sentence(self) -> str:
        """Such as "be at least 0" or "lie in [0, 1)"."""
        low = self.gt if self.ge is None else self.ge
        high = self.lt if self.le is None else self.le
        if high is None:
            return f"be above {low:g}" if self.ge is None else f"be at least {low:g}"
        if low is None:
            return f"be below {high:g}" if self.le is None else f"be at most {high:g}"
        return f"lie in {'(' if self.ge is None else '['}{low:g}, {high:g}{')' if self.le is None else ']'}"


@dataclass(frozen=True)
class Rule:
    """Any other condition.

    holds: whether a value is allowed.
    sentence: what a value must do, such as "be different numbers from 1".
    """

    holds: Callable[[Any], bool]
    sentence: str


PositiveInt = Annotated[int, Interval(ge=1)]
NonNegativeInt = Annotated[int, Interval(ge=0)]
PositiveFloat = Annotated[float, Interval(gt=0)]
NonNegativeFloat = Annotated[float, Interval(ge=0)]
Ratio = Annotated[float, Interval(ge=0, le=1)]


def check(settings: Any) -> None:
    """Raise a ValueError for the first field of a dataclass that its annotation does not allow.

    Looks at `Interval` and `Rule` inside `Annotated`, and at `Literal`, also within tuples and unions. Types are not
    checked.
    """
    for name, kind in _annotations(settings.__class__).items():
        value = getattr(settings, name)
        if sentence := _broken(kind, value):
            shown = f"'{value}'" if isinstance(value, str) else list(value) if isinstance(value, tuple) else value
            raise ValueError(f"{name} must {sentence}, got {shown}")


@cache
def _annotations(cls: type) -> dict[str, Any]:
    """The annotation of each field, with what `Annotated` adds."""
    hints = get_type_hints(cls, include_extras=True)
    return {entry.name: hints[entry.name] for entry in fields(cls)}


def _broken(kind: Any, value: Any) -> str:
    """What the value must do and does not; "" where the annotation allows it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        rules = [rule for rule in kind.__metadata__ if isinstance(rule, Interval | Rule)]
        return _broken(arguments[0], value) or next((rule.sentence for rule in rules if not rule.holds(value)), "")
    if origin is Literal:
        return "" if value in arguments else f"be one of {', '.join(map(str, arguments))}"
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return ""
        sentences = [_broken(one, value) for one in arguments if one is not type(None)]
        return "" if "" in sentences else " or ".join(sentences) + (", or null" if type(None) in arguments else "")
    if origin is tuple:
        kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        return next(filter(None, map(_broken, kinds, value)), "")
    return ""
