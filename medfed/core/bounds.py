"""Types, ranges and choices of settings: written in a dataclass's annotations, checked by pydantic.

>>> @dataclass(frozen=True)
... class Settings:
...     weight: NonNegativeFloat = 0.1
...     alpha: Annotated[float, Field(ge=0, lt=0.5)] = 0.01
...     average: Literal["examples", "uniform"] = "examples"
...
...     def __post_init__(self) -> None:
...         check(self)
>>> Settings(alpha=0.7)
Traceback (most recent call last):
medfed.core.mistakes.SettingsError: alpha: expected a number below 0.5, got 0.7

The dataclasses are those of the standard library, so that a class outside of medfed needs nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from dataclasses import Field as DataclassField
from functools import cache, partial
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, ValidationInfo, WrapValidator
from typing_extensions import Required, TypedDict

from medfed.core import registry
from medfed.core.errors import UserError, UserErrors
from medfed.core.mistakes import Mistake, SettingsError, describe_value, mistakes_of

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]  # of steps, rounds, images; more would take years
ImageSize = Annotated[int, Field(ge=1, le=4096)]  # side in pixels; one float32 image of 4096 has 67 MB per channel
Ratio = Annotated[float, Field(ge=0, le=1)]
RatioBelowOne = Annotated[float, Field(ge=0, lt=1)]
DEFAULT_PRESET = "medfed"
T = TypeVar("T")

# Nothing is cast, except that a whole number is a number. Unknown keys, NaN and infinity are refused. Methods outside
# of medfed may have fields of any class, which pydantic then checks with isinstance.
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)


def check(settings: Any, conflicts: Callable[[], Iterable[tuple[str, ...]]] | None = None) -> None:
    """Raise a SettingsError if a field does not fit its annotation; a list is accepted for a tuple.

    If every field is valid, `conflicts` yields (field, sentence, other fields ...) for those that do not fit together.
    """
    cls: type = type(settings)
    given = with_tuples({field.name: getattr(settings, field.name) for field in written_fields(cls)})
    _validated(cls, adapter(cls).validate_python, given)
    found = [Mistake((name,), sentence, tuple(others)) for name, sentence, *others in (conflicts or tuple)()]
    if found:
        raise SettingsError(found)


def load_settings(cls: type[T], document: object, source: str) -> T:
    """Build a dataclass from a YAML document that is not a config; UserErrors, each of which starts with `source`."""
    try:
        return build(cls, document)
    except SettingsError as error:
        raise UserErrors(f"{source}: {mistake}" for mistake in error.mistakes) from None


def build(cls: type[T], block: object, more_keys: tuple[str, ...] = ()) -> T:
    """Build a dataclass, with nested ones, from plain data; `more_keys` could be meant by an unknown key."""
    of_class: type = cls
    hints = _hints(of_class)
    if isinstance(block, Mapping):  # an empty block has its defaults
        block = {key: {} if value is None and is_dataclass(hints.get(key)) else value for key, value in block.items()}
    values = _validated(cls, lambda given: adapter(of_class).validate_json(json.dumps(given)), block, more_keys)
    try:
        return cls(**with_tuples(values))
    except SettingsError:
        raise
    except ValueError as error:
        raise SettingsError([Mistake((), str(error))]) from error


def build_by_name(kind: str, block: object) -> Any:
    """Build an object of the class that a block names (`chosen_by_name`); SettingsError with all mistakes."""
    if not isinstance(block, Mapping | None):
        raise SettingsError([Mistake((), f"expected a block of keys and values, got {describe_value(block)}")])
    settings, key = dict(block or {}), "name"
    try:
        if key not in settings:
            raise UserError(f"missing; expected one of {', '.join(registry.known_names(kind))}")
        name = _text(settings.pop(key))
        cls = registry.resolve(kind, name)
        keys: tuple[str, ...] = (key,)
        if presets := getattr(cls, "presets", None):
            key = "preset"
            keys, preset = (*keys, key), _text(settings.pop(key, DEFAULT_PRESET))
            if preset not in presets:
                raise UserError(f"no preset '{preset}' of {name}. {registry.suggestion(preset, presets)}")
            settings = {**presets[preset], **settings}
    except UserError as error:
        raise SettingsError([Mistake((key,), str(error))]) from error
    return build(cls, settings, keys)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise UserError(f"expected text, got {describe_value(value)}")
    return value


def chosen_by_name(kind: str) -> WrapValidator:
    """Annotation of a block that chooses its class of a `kind` by `name`, and perhaps `preset`: `{name: fedprox}`."""

    def validate(value: Any, handler: Callable[[Any], Any], info: ValidationInfo) -> Any:
        return build_by_name(kind, value) if info.mode == "json" else handler(value)

    return WrapValidator(validate)


def written_fields(cls: type) -> list[DataclassField]:
    """The fields that a config may contain: all but those with `metadata={"derived": True}`."""
    return [field for field in fields(cls) if not field.metadata.get("derived")]


def is_required(field: DataclassField) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def defaults(cls: type) -> dict[str, Any]:
    """The defaults of the written fields that have one, by name."""
    given = {field: field.default for field in written_fields(cls) if not is_required(field)}
    return {f.name: default if f.default_factory is MISSING else f.default_factory() for f, default in given.items()}


def distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Validator for annotations: ValueError if a value occurs twice."""
    if len(set(values)) < len(values):
        raise ValueError("expected different values")
    return values


def ordered(limits: tuple[float, float]) -> tuple[float, float]:
    """Validator for annotations: ValueError unless the pair is (lowest, highest)."""
    if limits[0] > limits[1]:
        raise ValueError("expected two numbers, the first not above the second")
    return limits


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


@cache
def adapter(cls: type) -> TypeAdapter:
    """pydantic's validator of a dictionary of a dataclass's written fields; TypeError for a field that is a list.

    A validator of the dataclass itself could not check an object while it is created (`check`).
    """
    hints = _hints(cls)
    types: dict[str, Any] = {}
    for field in written_fields(cls):
        kind = hints[field.name]
        if kind is list or get_origin(kind) is list:
            raise TypeError(
                f"{cls.__module__}.{cls.__qualname__}.{field.name} is a list; declare it as tuple[TYPE, ...]"
            )
        types[field.name] = Required[kind] if is_required(field) else kind
    typed_dict: Any = TypedDict  # mypy knows only those with a literal name
    values = typed_dict(cls.__name__, types, total=False)
    values.__pydantic_config__ = STRICT
    return TypeAdapter(values)


def _validated(cls: type, validate: Callable[[Any], Any], given: Any, more_keys: tuple[str, ...] = ()) -> Any:
    """Return the values of the fields of a class, as pydantic converts them; SettingsError with all mistakes."""
    try:
        values = validate(given)
    except ValidationError as error:
        known_keys = partial(_known_keys, cls, more_keys=more_keys)
        raise SettingsError(mistakes_of(error, given, known_keys)) from None
    # pydantic takes 8.0 for the choice 8
    if casts := [name for name in values if type(values[name]) is int and isinstance(given[name], float)]:
        raise SettingsError(Mistake((name,), f"expected a whole number, got {given[name]}") for name in casts)
    return values


def _known_keys(cls: type, path: tuple[str | int, ...], more_keys: tuple[str, ...]) -> list[str]:
    """The keys of the block at a path below a class."""
    for key in (part for part in path if isinstance(part, str)):
        hint, more_keys = get_type_hints(cls)[key], ()
        cls = next(kind for kind in (hint, *get_args(hint)) if isinstance(kind, type) and is_dataclass(kind))
    return [*more_keys, *(field.name for field in written_fields(cls))]


def with_tuples(value: Any) -> Any:
    """Replace every list by a tuple: YAML has lists, frozen dataclasses hold tuples."""
    if isinstance(value, list | tuple):
        return tuple(map(with_tuples, value))
    if isinstance(value, Mapping):
        return {name: with_tuples(entry) for name, entry in value.items()}
    return value
