"""Ranges in annotations: what they allow, and the sentence of what they refuse."""

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from medfed.core.bounds import (
    Interval,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Ratio,
    Rule,
    check,
)


@dataclass(frozen=True)
class Settings:
    weight: NonNegativeFloat = 0.0
    temperature: PositiveFloat = 1.0
    n_views: NonNegativeInt = 0
    n_rounds: PositiveInt = 1
    ratio: Ratio = 0.5
    alpha: Annotated[float, Interval(ge=0, lt=0.5)] = 0.1
    share: Annotated[float, Interval(gt=0, le=1)] = 1.0
    below: Annotated[float, Interval(lt=3)] = 0.0
    at_most: Annotated[float, Interval(le=3)] = 0.0
    average: Literal["examples", "uniform"] = "examples"
    bound: PositiveFloat | None = None
    mix: Literal["uniform"] | Ratio = "uniform"
    shares: tuple[Ratio, ...] = (0.5,)
    limits: Annotated[tuple[NonNegativeFloat, float], Rule(lambda pair: pair[0] <= pair[1], "rise")] = (0.0, 1.0)
    free: float = 0.0

    def __post_init__(self):
        check(self)


@pytest.mark.parametrize("allowed", [
    {"weight": 0.0}, {"temperature": 1e-9}, {"n_views": 0}, {"n_rounds": 1}, {"ratio": 0.0}, {"ratio": 1.0},
    {"alpha": 0.0}, {"share": 1.0}, {"below": -9.0}, {"at_most": 3.0}, {"average": "uniform"}, {"bound": None},
    {"bound": 2.0}, {"mix": 0.0}, {"shares": ()}, {"shares": (0.0, 1.0)}, {"limits": (2.0, 2.0)},
    {"free": float("nan")},
], ids=repr)  # fmt: skip
def test_values_inside_the_range_and_on_its_closed_ends_are_allowed(allowed):
    Settings(**allowed)


@pytest.mark.parametrize("refused, sentence", [
    ({"weight": -0.1}, "weight must be at least 0, got -0.1"),
    ({"weight": float("nan")}, "weight must be at least 0, got nan"),
    ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
    ({"n_views": -1}, "n_views must be at least 0, got -1"),
    ({"n_rounds": 0}, "n_rounds must be at least 1, got 0"),
    ({"ratio": 1.1}, r"ratio must lie in \[0, 1\], got 1.1"),
    ({"alpha": 0.5}, r"alpha must lie in \[0, 0.5\), got 0.5"),
    ({"share": 0.0}, r"share must lie in \(0, 1\], got 0.0"),
    ({"below": 3.0}, "below must be below 3, got 3.0"),
    ({"at_most": 3.1}, "at_most must be at most 3, got 3.1"),
    ({"average": "unifrom"}, "average must be one of examples, uniform, got 'unifrom'"),
    ({"bound": 0.0}, "bound must be above 0, or null, got 0.0"),
    ({"mix": "one"}, r"mix must be one of uniform or lie in \[0, 1\], got 'one'"),
    ({"mix": 2.0}, r"mix must be one of uniform or lie in \[0, 1\], got 2.0"),
    ({"shares": (0.5, 2.0)}, r"shares must lie in \[0, 1\], got \[0.5, 2.0\]"),
    ({"limits": (-1.0, 2.0)}, r"limits must be at least 0, got \[-1.0, 2.0\]"),
    ({"limits": (3.0, 2.0)}, r"limits must rise, got \[3.0, 2.0\]"),
], ids=repr)  # fmt: skip
def test_a_value_outside_is_refused_in_one_sentence(refused, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        Settings(**refused)
