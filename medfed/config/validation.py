"""Build frozen dataclasses from the plain values of a config, and the reverse. All mistakes are collected."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from medfed.core import bounds
from medfed.core.bounds import written_fields
from medfed.core.errors import UserError, UserErrors
from medfed.core.mistakes import Mistake, SettingsError, describe_type, describe_value
from medfed.core.registry import code_of, suggestion

Path = tuple[str | int, ...]  # keys and list positions from the top of the document to a value
T = TypeVar("T")
_BLOCK = "a block of keys and values"


@dataclass
class Choice:
    """The class from which a block of a config is built, and its values.

    Args:
        cls: None if the block chooses none.
        values: keys and values of its fields.
        further_keys: additional keys that the block may have, which are no fields.
        mistakes: what is wrong with the values of these further keys.
    """

    cls: type | None
    values: Mapping[str, Any] = field(default_factory=dict)
    further_keys: tuple[str, ...] = ()
    mistakes: list[Mistake] = field(default_factory=list)


Choose = Callable[[type, Mapping[str, Any], Path], Choice]  # from a class, a block and its path


def load_settings(cls: type[T], document: object, source: str) -> T:
    """Build a dataclass, with nested ones, from a YAML document that is not a config, such as a file of a hospital.

    UserError, which starts with `source`, with one sentence for each mistake.
    """
    instance, mistakes = build(cls, document, (), lambda cls, block, path: Choice(cls, block))
    if mistakes:
        raise UserErrors(f"{source}: {with_key(mistake)}" for mistake in mistakes)
    return instance


def with_key(mistake: Mistake) -> str:
    """Return a sentence such as `training.batch_size: must be at least 1, got 0`."""
    return f"{mistake.key}: {mistake.sentence}" if mistake.path else mistake.sentence


def join_key(key: str, name: str) -> str:
    """Join the dotted key of a block, "" for the top level, and the name of an entry."""
    return f"{key}.{name}" if key else name


def build(cls: type, block: object, path: Path, choose: Choose) -> tuple[Any, list[Mistake]]:
    """Build a dataclass from a block (None is an empty one) and return (instance, []), or (None, mistakes).

    `choose` returns the class for (class in the annotation, block, path): the one that the block's `name` chooses, if
    blocks of this kind have a name. Values are checked together only if each is valid by itself.
    """
    block = {} if block is None else block
    if not isinstance(block, Mapping):
        return None, [Mistake(path, f"expected {_BLOCK}, got {describe_value(block)}")]
    choice = choose(cls, block, path)
    if choice.cls is None:
        return None, choice.mistakes
    try:
        with code_of(choice.cls):
            return _build_chosen(choice.cls, choice, path, choose)
    except UserError as error:
        return None, [*choice.mistakes, Mistake(path, str(error))]


def _build_chosen(chosen: type, choice: Choice, path: Path, choose: Choose) -> tuple[Any, list[Mistake]]:
    """Build an instance of the class that was chosen for a block; see `build`."""
    block, mistakes = choice.values, list(choice.mistakes)
    fields = {entry.name: entry for entry in written_fields(chosen)}
    mistakes += _wrong_keys(block, (*choice.further_keys, *fields), path)
    hints = _type_hints(chosen)
    values: dict[str, Any] = {}
    for name in fields:
        if name in block:
            values[name], wrong = _with_instances(hints[name], block[name], (*path, name), choose)
            mistakes += wrong
            if wrong:
                del values[name]
        elif _is_required(fields[name]):
            expected = describe_type(bounds.field_schemas(chosen)[name])
            mistakes.append(Mistake((*path, name), f"missing; expected {expected}", is_missing=True))
    accepted, wrong = bounds.validate(chosen, values)
    mistakes += [dataclasses.replace(mistake, path=(*path, *mistake.path)) for mistake in wrong]
    if mistakes:
        order = {name: place for place, name in enumerate((*choice.further_keys, *fields))}
        mistakes.sort(key=lambda mistake: order.get(str(mistake.path[len(path)]), len(order)))  # unknown keys last
        return None, mistakes + _partial_conflicts(chosen, accepted)
    try:
        return chosen(**accepted), []
    except SettingsError as error:
        return None, [dataclasses.replace(mistake, path=(*path, *mistake.path)) for mistake in error.mistakes]
    except ValueError as error:
        return None, [Mistake(path, str(error))]


@cache
def _type_hints(cls: type) -> dict[str, Any]:
    """Types of a class's fields, with their bounds. A run asks for those of each class many times."""
    return get_type_hints(cls, include_extras=True)


def to_plain(value: object, label: Callable[[object], Mapping[str, Any]]) -> Any:
    """Reverse `build`; `label` returns keys that come before the fields, such as the `name` that chose the class."""
    if dataclasses.is_dataclass(value):
        names = [entry.name for entry in written_fields(type(value))]
        return {**label(value), **{name: to_plain(getattr(value, name), label) for name in names}}
    if isinstance(value, Mapping):
        return {name: to_plain(entry, label) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(entry, label) for entry in value]
    return value


def _wrong_keys(block: Iterable[object], known: tuple[str, ...], path: Path) -> list[Mistake]:
    return [
        Mistake((*path, str(name)), f"unknown key. {suggestion(str(name), known)}")
        for name in block
        if name not in known
    ]


def _with_instances(hint: Any, value: object, path: Path, choose: Choose) -> tuple[Any, list[Mistake]]:
    """Replace the blocks in a value by instances of the dataclasses that an annotation has in their places."""
    if dataclasses.is_dataclass(hint):
        return build(hint, value, path, choose)  # type: ignore[arg-type]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _with_instances(arguments[0], value, path, choose)
    if origin in (Union, types.UnionType) and isinstance(value, Mapping):
        option = next(filter(dataclasses.is_dataclass, arguments), None)
        return (value, []) if option is None else _with_instances(option, value, path, choose)
    if origin is tuple and isinstance(value, list | tuple):
        kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        pairs = [_with_instances(kind, entry, (*path, n), choose) for n, (kind, entry) in enumerate(zip(kinds, value))]
        instances = [instance for instance, _ in pairs] + list(value[len(pairs) :])
        return instances, [mistake for _, wrong in pairs for mistake in wrong]
    return value, []


def _partial_conflicts(cls: type, values: Mapping[str, Any]) -> list[Mistake]:
    """What does not fit together among the allowed values of a class that can say so without the others."""
    conflicts = getattr(cls, "conflicts", None)
    return [Mistake((key,), sentence, is_conflict=True) for key, sentence in conflicts(values)] if conflicts else []


def _is_required(entry: dataclasses.Field) -> bool:
    return entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
