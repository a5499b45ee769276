"""Sentences about wrong values in settings: where, what was expected, what was found, and what to write instead."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from medfed.core.errors import UserErrors
from medfed.core.registry import nearest

Schema = Mapping[str, Any]
MAX_DIGITS = 18  # of a whole number in YAML: every such number fits into 64 bits
WORDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "null": "null",
}
_PLURALS = {"integer": "whole numbers", "number": "numbers", "string": "texts"}
_BOOLEAN_HINT = "; YAML reads yes, no, on and off as true and false, so put the word in quotes"
_WRITTEN_NUMBER = re.compile(r"([-+]?)(?:0*(?=[0-9]))?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)")  # sign; digits from the first
_RANGE_ERRORS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


@dataclass(frozen=True)
class Mistake:
    """One wrong value in a config, with the sentence that explains it.

    Args:
        path: keys and list positions of the value; empty if several fields do not fit together.
        sentence: what is wrong, such as "must be at least 0, got -1".
        is_conflict: whether the value is valid by itself, but does not fit to another value, which the sentence names.
    """

    path: tuple[str | int, ...]
    sentence: str
    is_missing: bool = False
    is_conflict: bool = False

    @property
    def key(self) -> str:
        """The dotted key, such as `training.betas[1]`."""
        return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path).removeprefix(".")

    def __str__(self) -> str:
        if not self.path:
            return self.sentence
        return f"{self.key} {self.sentence}" if self.sentence.startswith("must ") else f"{self.key}: {self.sentence}"


class SettingsError(UserErrors):
    """Values of settings are not allowed; the message has one line for each of the `mistakes`."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__(map(str, self.mistakes))


def mistake_of(error: Mapping[str, Any], values: object, schemas: Mapping[str, Schema]) -> Mistake:
    """Convert an error of pydantic's `ValidationError.errors()`, given the validated values and their schemas."""
    schema: Schema = {"type": "object", "properties": schemas}
    path: list[str | int] = []
    is_optional = False
    for part in error["loc"]:
        if part == "[key]":
            key = error["loc"][-2]
            return Mistake(tuple(path), f"expected text, got {describe_value(key)}{hint('string', key)}")
        child = _child(schema, values, part)
        if child is None:  # within a choice of several types, or a missing entry: the sentence is about the whole
            break
        schema, is_optional = _without_null(child)
        path.append(part if isinstance(values, tuple) else str(part))
        values = values[part]  # type: ignore[index]
    return Mistake(tuple(path), _sentence(error, schema, values, is_optional))


def describe_type(schema: Schema) -> str:
    """Describe the type that a JSON Schema allows, such as "a list of 2 numbers"."""
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if "anyOf" in schema:
        return " or ".join(map(describe_type, schema["anyOf"]))
    if "prefixItems" in schema:
        types = {entry.get("type") for entry in schema["prefixItems"]}
        if len(types) == 1 and (plural := _PLURALS.get(*types)):
            return f"a list of {len(schema['prefixItems'])} {plural}"
        return f"a list of {len(schema['prefixItems'])} ({', '.join(map(describe_type, schema['prefixItems']))})"
    if schema.get("type") == "array":
        entry = schema.get("items", {})
        plural = None if "enum" in entry else _PLURALS.get(entry.get("type", ""))
        return f"a list of {plural}" if plural else f"a list (each entry {describe_type(entry)})" if entry else "a list"
    if not schema:
        return "an object that only Python can make"
    return WORDS.get(schema.get("type", ""), "a block of keys and values")


def describe_rule(schema: Schema) -> str:
    """Describe the allowed values to continue "must": "be at least 0", "lie in [0, 1)" or "be one of a, b"."""
    if "anyOf" in schema:
        rules = [describe_rule(option) for option in schema["anyOf"] if option.get("type") != "null"]
        return " or ".join(rules) + (", or null" if len(rules) < len(schema["anyOf"]) else "")
    limits = describe_limits(schema)
    if limits:
        return f"{'lie' if limits.startswith('in ') else 'be'} {limits}"
    return f"be {describe_type(schema)}"


def describe_limits(schema: Schema) -> str:
    """Describe the range of a number, such as "at least 0" or "in [0, 1)"; "" without limits."""
    low, high = _limit(schema, "inimum"), _limit(schema, "aximum")
    if low and high:
        return f"in {'[' if low[1] else '('}{low[0]:.15g}, {high[0]:.15g}{']' if high[1] else ')'}"
    if low:
        return f"{'at least' if low[1] else 'above'} {low[0]:.15g}"
    return f"{'at most' if high[1] else 'below'} {high[0]:.15g}" if high else ""


def describe_value(value: object) -> str:
    """Describe a wrong value in at most one line, such as "the text 'abc'"."""
    if isinstance(value, str):
        return f"the text {reprlib.repr(value)}"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]
    if isinstance(value, Mapping):
        return "a block of keys and values"
    return reprlib.repr(list(value) if isinstance(value, tuple) else value)


def hint(wanted: str, value: object) -> str:
    """Return advice such as "; put it in quotes" if a common mistake in YAML explains the wrong type, else "".

    `wanted` is the expected type as JSON Schema names it: "string", "number", "integer" or "array".
    """
    if wanted == "string" and isinstance(value, bool):
        return _BOOLEAN_HINT
    if wanted == "string" and isinstance(value, int | float):
        return "; put it in quotes"
    if wanted in ("integer", "number") and isinstance(value, str):
        number = _WRITTEN_NUMBER.fullmatch(value.strip().replace("_", ""))
        if number and "." not in number[2] and len(number[2]) > MAX_DIGITS:
            return f"; a whole number has at most {MAX_DIGITS} digits"
        plain = number[1] + number[2] if number else ""
        return "" if not number else "; remove the quotes" if plain == value.strip() else f"; write {plain}"
    if wanted == "array" and isinstance(value, str):
        return "; write it as [a, b]"
    return ""


def _sentence(error: Mapping[str, Any], schema: Schema, value: object, is_optional: bool) -> str:
    """The text of one mistake: what was expected and what was found."""
    kind, found = error["type"], describe_value(value)
    quoted = repr(value) if isinstance(value, str) and len(value) < 80 else found
    if kind.startswith("dataclass") and isinstance(value, Mapping):  # a dictionary, where Python expects an object
        return f"expected an object of the class {error['ctx']['class_name']}, got a dictionary"
    if kind == "finite_number" and "anyOf" not in schema:
        return f"expected a finite number, got {value}"
    if kind == "value_error":  # raised by a function in the annotation
        return f"{error['ctx']['error']}, got {found}"
    if "enum" in schema or "anyOf" in schema:
        rule = describe_rule(schema) + (", or null" if is_optional else "")
        return f"must {rule}, got {quoted}{_choice_hint(schema, value)}"
    if kind in _RANGE_ERRORS:
        return f"must {describe_rule(schema)}{', or null' if is_optional else ''}, got {found}"
    if kind in ("too_short", "too_long", "missing") and "prefixItems" in schema:
        return f"expected {describe_type(schema)}, got {len(value)}: {found}"  # type: ignore[arg-type]
    if kind == "too_short":
        return f"must have at least {schema['minItems']} entr{'y' if schema['minItems'] == 1 else 'ies'}, got {found}"
    if kind.endswith(("_type", "_parsing", "_from_float")) or kind in ("dataclass_exact_type", "is_instance_of"):
        null = " or null" if is_optional else ""
        return f"expected {describe_type(schema)}{null}, got {found}{hint(schema.get('type', ''), value)}"
    return f"{re.sub('^[A-Z][a-z]* should', 'must', error.get('msg', 'must be another value'))}, got {found}"


def _child(schema: Schema, values: object, part: str | int) -> Schema | None:
    """The schema of an entry of a block or list; None where there is none, or a choice of several types."""
    if isinstance(values, Mapping):
        return schema.get("properties", {}).get(part, schema.get("additionalProperties"))
    if not isinstance(values, tuple) or not isinstance(part, int) or part >= len(values):
        return None
    return schema["prefixItems"][part] if "prefixItems" in schema else schema.get("items")


def _without_null(schema: Schema) -> tuple[Schema, bool]:
    """Return the schema without the option null, and whether there was one. Several other options stay together."""
    options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    return (options[0], True) if len(options) == 1 else (schema, False)


def _limit(schema: Schema, word: str) -> tuple[float, bool] | None:
    """Return a limit of a number and whether it is allowed itself; `word` is "inimum" or "aximum"."""
    if f"m{word}" in schema:
        return schema[f"m{word}"], True
    exclusive = f"exclusiveM{word}"
    return (schema[exclusive], False) if exclusive in schema else None


def _choices(schema: Schema) -> list[Any]:
    """The values that a schema lists, also within its options."""
    options = [choice for option in schema.get("anyOf", ()) for choice in _choices(option)]
    return [*schema.get("enum", ()), *options]


def _choice_hint(schema: Schema, value: object) -> str:
    """Return the nearest choice to a text, or what YAML does with words for yes and no."""
    words = [choice for choice in _choices(schema) if isinstance(choice, str)]
    if words and isinstance(value, bool):
        return _BOOLEAN_HINT
    return f". Did you mean '{near}'?" if isinstance(value, str) and (near := nearest(value, words)) else ""
