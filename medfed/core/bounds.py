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
medfed.core.mistakes.SettingsError: alpha must lie in [0, 0.5), got 0.7

The dataclasses are those of the standard library, so that a class outside of medfed needs nothing else. pydantic
decides whether a value is allowed; the sentences are medfed's own (`medfed.core.mistakes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Annotated, Any, get_origin, get_type_hints

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict

from medfed.core.mistakes import Mistake, SettingsError, mistake_of

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]  # of steps, rounds, images; more would take years
ImageSize = Annotated[int, Field(ge=1, le=4096)]  # side in pixels; one float32 image of 4096 has 67 MB per channel
Ratio = Annotated[float, Field(ge=0, le=1)]
RatioBelowOne = Annotated[float, Field(ge=0, lt=1)]


def _refuse_null(name: object) -> object:
    """Return the value; null, which an empty value in YAML means, is refused with what to write instead."""
    if name is None:
        raise ValueError('expected the name of a site, or "" for none')
    return name


SiteOrNone = Annotated[str, BeforeValidator(_refuse_null)]  # "" is none

# Nothing is cast, except that a whole number is a number. Unknown keys, NaN and infinity are refused. Methods outside
# of medfed may have fields of any class, which pydantic then checks with isinstance.
_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)


def check(settings: Any, conflicts: Callable[[], Iterable[tuple[str, str]]] | None = None) -> None:
    """Raise a SettingsError if a field does not fit its annotation; a list is accepted for a tuple.

    If every field is valid by itself, `conflicts` yields (field, sentence) for fields that do not fit together.
    """
    fields = written_fields(type(settings))
    _, mistakes = validate(type(settings), {field.name: getattr(settings, field.name) for field in fields})
    if not mistakes and conflicts is not None:
        mistakes = [Mistake((name,), sentence, is_conflict=True) for name, sentence in conflicts()]
    if mistakes:
        raise SettingsError(mistakes)


def validate(cls: type, values: Mapping[str, object]) -> tuple[dict[str, Any], list[Mistake]]:
    """Return the allowed values by field, converted (int to float, list to tuple), and a mistake for each wrong one."""
    given = {name: _with_tuples(value) for name, value in values.items()}
    try:
        accepted = _adapter(cls).validate_python(given)
        mistakes: list[Mistake] = []
    except ValidationError as error:
        found = [mistake_of(entry, given, field_schemas(cls)) for entry in error.errors(include_url=False)]
        inner = {mistake.path[:n] for mistake in found for n in range(len(mistake.path))}
        mistakes = list({mistake.path: mistake for mistake in found if mistake.path not in inner}.values())
        wrong = {mistake.path[0] for mistake in mistakes}
        accepted = _adapter(cls).validate_python({name: value for name, value in given.items() if name not in wrong})
    for name in [name for name, value in accepted.items() if _is_cast(given[name], value)]:
        entry = {"type": "literal_error", "loc": (name,)}  # pydantic takes 8.0 for the choice 8
        mistakes.append(mistake_of(entry, given, field_schemas(cls)))
        del accepted[name]
    return accepted, mistakes


@cache
def field_schemas(cls: type) -> dict[str, dict[str, Any]]:
    """The JSON Schema of each written field; a field that holds another dataclass refers to `#/$defs/CLASS`."""
    properties = _adapter(cls).json_schema(schema_generator=_JsonSchema).get("properties", {})
    return {name: _without_titles(schema) for name, schema in properties.items()}


def written_fields(cls: type) -> list[dataclasses.Field]:
    """The fields that a config may contain: all but those with `metadata={"derived": True}`."""
    return [field for field in dataclasses.fields(cls) if not field.metadata.get("derived")]


def distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Validator for annotations: ValueError if a value occurs twice."""
    if len(set(values)) < len(values):
        raise ValueError("must be different values")
    return values


def ordered(limits: tuple[float, float]) -> tuple[float, float]:
    """Validator for annotations: ValueError unless the pair is (lowest, highest)."""
    if limits[0] > limits[1]:
        raise ValueError("must be two numbers, the first not above the second")
    return limits


@cache
def _adapter(cls: type) -> TypeAdapter:
    """pydantic's validator of a dictionary of a dataclass's written fields; TypeError for a field that is a list.

    pydantic cannot validate the dataclass itself: in strict mode it takes instances only, and no dictionary.
    """
    hints = get_type_hints(cls, include_extras=True)
    kinds = {field.name: hints[field.name] for field in written_fields(cls)}
    for name, kind in kinds.items():
        if kind is list or get_origin(kind) is list:
            raise TypeError(f"{cls.__module__}.{cls.__qualname__}.{name} is a list; declare it as tuple[TYPE, ...]")
    typed_dict: Any = TypedDict  # mypy knows only those with a literal name
    fields = typed_dict(cls.__name__, kinds, total=False)
    fields.__pydantic_config__ = _STRICT
    return TypeAdapter(fields)


class _JsonSchema(GenerateJsonSchema):
    """JSON Schema also of fields that no config can hold, such as functions: any value."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        """Return {}, which allows every value, for a type that JSON schema cannot describe."""
        return {}


def _with_tuples(value: object) -> object:
    """Replace every list by a tuple: YAML has lists, frozen dataclasses hold tuples."""
    if isinstance(value, list | tuple):
        return tuple(map(_with_tuples, value))
    if isinstance(value, Mapping):
        return {name: _with_tuples(entry) for name, entry in value.items()}
    return value


def _without_titles(schema: Any) -> Any:
    """Return a JSON Schema without what differs between versions of pydantic: titles, and `const` beside `enum`."""
    if isinstance(schema, list):
        return [_without_titles(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    if "const" in schema:
        schema = {"enum": [schema["const"]], **{name: entry for name, entry in schema.items() if name != "const"}}
    if len(schema.get("allOf", ())) == 1:
        schema = {**schema["allOf"][0], **{name: entry for name, entry in schema.items() if name != "allOf"}}
    return {name: _without_titles(entry) for name, entry in schema.items() if name != "title"}


def _is_cast(given: object, accepted: object) -> bool:
    """Whether a float became a whole number, at any depth."""
    if isinstance(given, tuple) and isinstance(accepted, tuple):
        return any(map(_is_cast, given, accepted))
    return isinstance(given, float) and type(accepted) is int
