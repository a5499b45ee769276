"""Types, ranges and choices in annotations: what they allow, and the sentence about what they do not."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
from pydantic import AfterValidator, Field

from medfed.core import bounds
from medfed.core.bounds import check, distinct, ordered
from medfed.core.mistakes import SettingsError


@dataclass(frozen=True)
class Settings:
    weight: bounds.NonNegativeFloat = 0.0
    temperature: bounds.PositiveFloat = 1.0
    n_views: bounds.NonNegativeInt = 0
    n_rounds: bounds.PositiveInt = 1
    ratio: bounds.Ratio = 0.5
    momentum: bounds.RatioBelowOne = 0.5
    alpha: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    below: Annotated[float, Field(lt=3)] = 0.0
    at_most: Annotated[float, Field(le=3)] = 0.0
    average: Literal["examples", "uniform"] = "examples"
    bits: Literal[8, 16] | None = None
    bound: bounds.PositiveFloat | None = None
    mix: Literal["uniform"] | bounds.Ratio = "uniform"
    ratios: tuple[bounds.Ratio, ...] = (0.5,)
    pair: tuple[float, float] = (0.0, 1.0)
    limits: Annotated[tuple[bounds.NonNegativeFloat, float], AfterValidator(ordered)] = (0.0, 1.0)
    stages: Annotated[tuple[bounds.PositiveInt, ...], Field(min_length=1), AfterValidator(distinct)] = (1, 2)
    values: dict[str, tuple[int, ...]] = field(default_factory=dict)
    free: float = 0.0
    name: str = ""
    is_on: bool = True
    step: Annotated[int, Field(multiple_of=4)] = 4

    def __post_init__(self):
        check(self, self._conflicts)

    def _conflicts(self):
        if self.name == "off" and self.is_on:
            yield "name", "is off, but is_on is true"
        if self.name == "off" and self.n_rounds == 2:
            yield "n_rounds", "must be 1 without a name"


def test_values_inside_the_range_and_on_its_closed_ends_are_allowed_and_stay_as_they_were_given():
    lowest = {"weight": 0.0, "n_views": 0, "n_rounds": 1, "ratio": 0.0, "alpha": 0.0, "mix": 0.0, "ratios": ()}
    others = {"weight": 2, "ratio": 1.0, "fraction": 1.0, "at_most": 3.0, "below": -9.0, "bound": 2.0, "step": 8}
    more = {"temperature": 1e-9, "average": "uniform", "bits": 16, "bound": None, "limits": (2.0, 2.0), "stages": (3,)}
    for allowed in (lowest, others, more, {"ratios": (0.0, 1.0), "values": {"disc": (0, 128)}}, {"ratios": [0.0, 1.0]}):
        settings = Settings(**allowed)
        assert all(getattr(settings, name) is value for name, value in allowed.items())


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"weight": -0.1}, "weight: expected a number of at least 0, got -0.1"),
        ({"weight": "1_000.5"}, "weight: expected a number, got the text '1_000.5'; write 1000.5"),
        ({"weight": "0.5"}, "weight: expected a number, got the text '0.5'; remove the quotes"),
        (
            {"n_views": "1" * 20},
            f"n_views: expected a whole number, got the text '{'1' * 20}'; a whole number has at most 18",
        ),
        ({"weight": "1e-3"}, "weight: expected a number, got the text '1e-3'"),
        ({"weight": True}, "weight: expected a number, got true"),
        ({"weight": None}, "weight: expected a number, got nothing"),
        ({"temperature": 0.0}, "temperature: expected a number above 0, got 0.0"),
        ({"n_rounds": 0}, "n_rounds: expected a number of at least 1, got 0"),
        ({"n_rounds": 5.0}, "n_rounds: expected a whole number, got 5.0"),
        ({"ratio": 1.1}, "ratio: expected a number of at most 1, got 1.1"),
        ({"momentum": 1.0}, "momentum: expected a number below 1, got 1.0"),
        ({"alpha": 0.5}, "alpha: expected a number below 0.5, got 0.5"),
        ({"fraction": 0.0}, "fraction: expected a number above 0, got 0.0"),
        ({"below": 3.0}, "below: expected a number below 3, got 3.0"),
        ({"at_most": 3.1}, "at_most: expected a number of at most 3, got 3.1"),
        (
            {"average": "unifrom"},
            "average: expected 'examples' or 'uniform', got the text 'unifrom'. Did you mean 'unif",
        ),
        ({"bits": 8.0}, "bits: expected a whole number, got 8.0"),
        ({"bits": True}, "bits: expected 8 or 16, got true"),
        ({"bound": 0.0}, "bound: expected a number above 0, got 0.0"),
        ({"bound": "a"}, "bound: expected a number, got the text 'a'"),
        ({"mix": "one"}, "mix: expected 'uniform' or a number, got the text 'one'"),
        ({"ratios": (0.5, 2.0)}, "ratios[1]: expected a number of at most 1, got 2.0"),
        ({"ratios": 0.5}, "ratios: expected a list, got 0.5"),
        ({"pair": (0.5,)}, "pair: expected a list of at least 2 entries, got fewer"),
        ({"limits": (-1.0, 2.0)}, "limits[0]: expected a number of at least 0, got -1.0"),
        ({"limits": (3.0, 2.0)}, "limits: expected two numbers, the first not above the second, got [3.0, 2.0]"),
        ({"stages": ()}, "stages: expected a list of at least 1 entries, got []"),
        ({"stages": (0,)}, "stages[0]: expected a number of at least 1, got 0"),
        ({"stages": (1, 1)}, "stages: expected different values, got [1, 1]"),
        ({"values": {1: (0,)}}, "values[1]: expected text, got 1; put it in quotes"),
        ({"values": {"disc": 0}}, "values.disc: expected a list, got 0"),
        ({"step": 3}, "step: expected a multiple of 4, got 3"),
    ],
    ids=repr,
)
def test_a_wrong_value_is_one_sentence(wrong, sentence):
    with pytest.raises(ValueError) as raised:
        Settings(**wrong)
    assert str(raised.value).startswith(sentence) and "\n" not in str(raised.value)


def test_all_mistakes_are_raised_at_once():
    with pytest.raises(SettingsError) as raised:
        Settings(weight=-1.0, ratios=(2.0, 3.0), name="off")
    assert [mistake.key for mistake in raised.value.mistakes] == ["weight", "ratios[0]", "ratios[1]"]
    with pytest.raises(SettingsError) as raised:  # values that do not fit together: once each value is allowed
        Settings(name="off", n_rounds=2)
    assert str(raised.value) == "name: is off, but is_on is true\nn_rounds: must be 1 without a name"


def test_a_class_of_its_own_as_a_type_is_checked_with_isinstance():
    @dataclass(frozen=True)
    class WithObject:
        settings: Settings = Settings()
        error: Exception | None = None
        function: Callable[[int], int] = abs

        def __post_init__(self):
            check(self)

    WithObject(error=ValueError("x"))
    for wrong in ({"error": 3}, {"settings": 3}, {"function": 3}):
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            WithObject(**wrong)
