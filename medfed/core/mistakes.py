"""Sentences about wrong values in settings: where, what was expected, what was found, and what to write instead."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from medfed.core.errors import UserErrors
from medfed.core.registry import nearest, suggestion

Path = tuple[str | int, ...]  # keys and list positions from the top of the document to a value
MAX_DIGITS = 18  # of a whole number in YAML: every such number fits into 64 bits
EXPECTED = {  # by type of a pydantic error
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a block of keys and values",
    "dataclass_type": "a block of keys and values",
    "literal_error": "{expected}",
    "greater_than": "a number above {gt:.15g}",
    "greater_than_equal": "a number of at least {ge:.15g}",
    "less_than": "a number below {lt:.15g}",
    "less_than_equal": "a number of at most {le:.15g}",
    "too_short": "a list of at least {min_length} entries",
    "too_long": "a list of at most {max_length} entries",
    "string_pattern_mismatch": "text that matches {pattern}",
}

_NUMBER = re.compile(r"\s*[-+]?[0-9_]*\.?[0-9_]+\s*")


@dataclass(frozen=True)
class Mistake:
    """One wrong value in a config, with the sentence that explains it."""

    path: Path  # keys and list positions of the value; empty if several fields do not fit together
    sentence: str  # what is wrong, such as "expected a number of at least 0, got -1"
    others: tuple[str, ...] = ()  # other keys that may have caused the mistake, relative to the same block as `path`

    @property
    def key(self) -> str:
        """The dotted key, such as `training.betas[1]`."""
        return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path).removeprefix(".")

    def below(self, path: Path) -> Mistake:
        """The mistake of a block that is at `path` in a larger document."""
        block = Mistake(path, "").key
        others = tuple(f"{block}.{key}".removeprefix(".") for key in self.others)
        return Mistake((*path, *self.path), self.sentence, others)

    def __str__(self) -> str:
        return f"{self.key}: {self.sentence}" if self.path else self.sentence


class SettingsError(UserErrors):
    """Values of settings are not allowed; the message has one line for each of the `mistakes`."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__(map(str, self.mistakes))


def mistakes_of(
    error: ValidationError,
    values: object,
    known_keys: Callable[[Path], Iterable[str]] = lambda path: (),
) -> list[Mistake]:
    """Convert an error of pydantic about `values`; `known_keys` returns the keys that the block at a path may have."""
    by_path: dict[Path, list[Mapping[str, Any]]] = {}  # several for a value with several possible types
    for entry in error.errors(include_url=False):
        by_path.setdefault(_path(entry, values), []).append(entry)
    mistakes: list[Mistake] = []
    for path, entries in by_path.items():
        kind, cause = entries[0]["type"], entries[0].get("ctx", {}).get("error")
        if isinstance(cause, SettingsError):
            mistakes += [mistake.below(path) for mistake in cause.mistakes]
        elif kind == "missing" and isinstance(path[-1], int):
            if (*path[:-1], path[-1] + 1) not in by_path:  # the last of several missing entries
                mistakes.append(Mistake(path[:-1], f"expected a list of at least {path[-1] + 1} entries, got fewer"))
        elif kind == "missing":  # perhaps because another name or preset has reset the block
            mistakes.append(Mistake(path[-1:], "missing; add it", ("name", "preset")).below(path[:-1]))
        elif kind in ("extra_forbidden", "unexpected_keyword_argument"):
            sentence = f"unknown key. {suggestion(str(path[-1]), known_keys(path[:-1]))}"
            mistakes.append(Mistake(path, sentence))
        elif not any(path == other[: len(path)] for other in by_path if other != path):
            mistakes.append(Mistake(path, _sentence(entries)))
    return mistakes


def describe_value(value: object) -> str:
    """Describe a wrong value in at most one line, such as "the text 'abc'"."""
    if isinstance(value, str):
        return f"the text {reprlib.repr(value)}"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]
    if isinstance(value, Mapping):
        return "a block of keys and values"
    return reprlib.repr(list(value) if isinstance(value, tuple) else value)


def _path(entry: Mapping[str, Any], values: Any) -> Path:
    """The keys and positions in an error's place that the document has; the other parts name one of several types."""
    path: list[str | int] = []
    for part in entry["loc"]:
        is_entry = isinstance(values, Mapping) and part in values
        if is_entry or isinstance(values, Sequence) and isinstance(part, int) and part < len(values):
            values = values[part]
            path.append(part)
    return (*path, entry["loc"][-1]) if entry["type"] == "missing" else tuple(path)


def _sentence(entries: Sequence[Mapping[str, Any]]) -> str:
    """What was expected and found, from the errors about a value: one for each type that it could have."""
    value, context = entries[0]["input"], entries[0].get("ctx", {})
    if "error" in context:  # raised by a class, or by a function in an annotation
        return str(context["error"]) + ("" if isinstance(value, Mapping) else f", got {describe_value(value)}")
    choices = [word for entry in entries for word in re.findall("'([^']*)'", entry.get("ctx", {}).get("expected", ""))]
    hint = _hint({entry["type"] for entry in entries}, value, choices)
    texts = [
        EXPECTED.get(entry["type"], "").format(**entry.get("ctx", {})) or entry["msg"].removeprefix("Input should be ")
        for entry in entries
    ]
    return f"expected {' or '.join(dict.fromkeys(texts))}, got {describe_value(value)}{hint}"


def _hint(expected: set[str], value: object, choices: Sequence[str]) -> str:
    """Return advice such as "; put it in quotes" if a common mistake explains the wrong value, else ""."""
    is_text_expected = "string_type" in expected
    if isinstance(value, bool) and (is_text_expected or choices):
        return "; YAML reads yes, no, on and off as true and false, so put the word in quotes"
    if is_text_expected and (value is None or isinstance(value, int | float)):
        return '; "" is an empty text' if value is None else "; put it in quotes"
    if not isinstance(value, str):
        return ""
    if expected & {"int_type", "float_type"} and _NUMBER.fullmatch(value):
        plain = re.sub(r"^([-+]?)0+(?=\d)", r"\1", value.strip().replace("_", ""))
        if len(plain.lstrip("-+").partition(".")[0]) > MAX_DIGITS:
            return f"; a whole number has at most {MAX_DIGITS} digits"
        return "; remove the quotes" if plain == value else f"; write {plain}"
    if "tuple_type" in expected:
        return "; write it as [a, b]"
    return f". Did you mean '{near}'?" if (near := nearest(value, choices)) else ""
