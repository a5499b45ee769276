"""From plain values to frozen dataclasses and back, strictly: the annotations are the schema, and nothing is cast."""

from __future__ import annotations

import dataclasses
import math
import reprlib
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from medfed.core.registry import suggestion

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
_BOOLEAN_WORDS = "; YAML reads yes, no, on and off as true and false, so put the word in quotes"

# (class, block, key) -> (the class to build, its keys and values, keys beside the class's own)
Choose = Callable[[type, Mapping[str, Any], str], tuple[type, Mapping[str, Any], tuple[str, ...]]]


class ConfigError(ValueError):
    """A value that does not fit, or is missing, at a dotted key; the key is empty for the whole document."""

    def __init__(self, key: str, sentence: str, is_missing: bool = False) -> None:
        super().__init__(f"{key}: {sentence}" if key else sentence)
        self.key, self.sentence, self.is_missing = key, sentence, is_missing


def build(cls: type, block: object, key: str, choose: Choose) -> Any:
    """An instance of a dataclass from a block of keys and values.

    Args:
        cls: a dataclass; fields with `metadata={"derived": True}` are not part of the block.
        block: plain values by field name; None (an empty block in YAML) is no values.
        key: where the block stands, dotted.
        choose: may replace the class by one that the block names.

    Raises:
        Wrong: for an unknown or missing key, a value of another type, or one that the class refuses.
    """
    block = {} if block is None else block
    if not isinstance(block, Mapping):
        raise ConfigError(key, f"expected a block of keys and values, got {shown(block)}")
    cls, block, beside = choose(cls, block, key)
    fields = {field.name: field for field in written_fields(cls)}
    check_keys(block, (*beside, *fields), key)
    hints = get_type_hints(cls)
    for name in fields:
        if name not in block and _is_required(fields[name]):
            raise ConfigError(dotted(key, name), f"missing; expected {describe(hints[name])}", True)
    values = {name: convert(hints[name], value, dotted(key, name), choose) for name, value in block.items()}
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigError(key, str(error)) from None


def convert(kind: Any, value: object, key: str, choose: Choose) -> Any:
    """A plain value as an annotation wants it. A whole number is a number, a list is a tuple, and that is all."""
    if dataclasses.is_dataclass(kind):
        return build(kind, value, key, choose)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _either(kind, value, key, choose)
    if origin is tuple:
        kinds = _entry_kinds(kind, value, key)
        return tuple(convert(one, entry, f"{key}[{i}]", choose) for i, (one, entry) in enumerate(zip(kinds, value)))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(key, f"expected {describe(kind)}, got {shown(value)}")
        names = {name: _scalar(str, name, f"{key}.{name}") for name in value}
        return {name: convert(arguments[1], value[name], f"{key}.{name}", choose) for name in names}
    if origin is Literal:
        if value not in arguments:
            raise ConfigError(key, f"expected {describe(kind)}, got {shown(value)}{_hint(str, value)}")
        return value
    return _scalar(kind, value, key)


def plain(value: object, label: Callable[[object], Mapping[str, Any]]) -> Any:
    """The reverse of `build`: dictionaries, lists and scalars. `label` gives a dataclass the keys that chose it."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: plain(getattr(value, field.name), label) for field in written_fields(type(value))}
        return {**label(value), **fields}
    if isinstance(value, Mapping):
        return {name: plain(entry, label) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        return [plain(entry, label) for entry in value]
    return value


def check_keys(block: Iterable[object], known: Iterable[str], key: str) -> None:
    """Raise Wrong for the first unknown key, with the nearest known one."""
    known = tuple(known)
    for name in block:
        if name not in known:
            raise ConfigError(dotted(key, str(name)), f"unknown key. {suggestion(str(name), known)}")


def written_fields(cls: type) -> list[dataclasses.Field]:
    """The fields of a dataclass that stand in a config."""
    return [field for field in dataclasses.fields(cls) if not field.metadata.get("derived")]


def dotted(key: str, name: str) -> str:
    """`training` and `betas` to `training.betas`."""
    return f"{key}.{name}" if key else name


def describe(kind: Any) -> str:
    """An annotation in words."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in WORDS:
        return WORDS[kind]
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"a list (each entry {describe(arguments[0])})"
    if origin is tuple:
        return f"a list of {len(arguments)} ({', '.join(describe(one) for one in arguments)})"
    if origin in (Union, types.UnionType):
        return " or ".join(describe(one) for one in arguments)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    return "a block of keys and values"


def shown(value: object) -> str:
    """A found value, short enough for one line."""
    if isinstance(value, str):
        return f"the text {reprlib.repr(value)}"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]
    if isinstance(value, Mapping):
        return "a block of keys and values"
    return reprlib.repr(value)


def _is_required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _either(kind: Any, value: object, key: str, choose: Choose) -> Any:
    """The first alternative that fits."""
    options = [option for option in get_args(kind) if option is not type(None)]
    if value is None and len(options) < len(get_args(kind)):
        return None
    if len(options) == 1:
        return convert(options[0], value, key, choose)
    for option in options:
        try:
            return convert(option, value, key, choose)
        except ConfigError:
            continue
    raise ConfigError(key, f"expected {describe(kind)}, got {shown(value)}")


def _entry_kinds(kind: Any, value: object, key: str) -> tuple[Any, ...]:
    """The annotation of each entry of a list."""
    arguments = get_args(kind)
    if not isinstance(value, list | tuple):
        hint = "; write it as [a, b]" if isinstance(value, str) else ""
        raise ConfigError(key, f"expected {describe(kind)}, got {shown(value)}{hint}")
    if arguments[-1] is Ellipsis:
        return arguments[:1] * len(value)
    if len(value) != len(arguments):
        raise ConfigError(key, f"expected {describe(kind)}, got {len(value)}: {shown(value)}")
    return arguments


def _scalar(kind: Any, value: object, key: str) -> Any:
    if kind not in WORDS:
        raise TypeError(f"{key}: a config cannot hold {kind}")
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise ConfigError(key, f"expected {WORDS[kind]}, got {shown(value)}{_hint(kind, value)}")
    if kind is float and not math.isfinite(value):
        raise ConfigError(key, f"expected a finite number, got {value}")
    return float(value) if kind is float else value


def _hint(kind: type, value: object) -> str:
    """What to try, where a YAML habit explains the wrong type."""
    if kind is str and isinstance(value, bool):
        return _BOOLEAN_WORDS
    if kind is str and isinstance(value, int | float):
        return "; put it in quotes"
    if kind in (int, float) and isinstance(value, str) and value.strip().lstrip("+-").replace(".", "", 1).isdigit():
        return "; remove the quotes" if len(value.strip()) <= 18 else "; a number has at most 18 digits"
    return ""
