"""Find the mistakes in a config that the JSON Schema shows, before torch and MONAI are imported in several seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from medfed.config import search, strict_yaml
from medfed.config.overrides import Override, apply, origin
from medfed.core import bounds, registry
from medfed.core.errors import Problem, UserError, UserErrors
from medfed.core.files import note_absolute
from medfed.core.mistakes import Mistake, SettingsError
from medfed.core.registry import BLOCK_KINDS

_TYPES = {"integer": int, "number": float, "boolean": bool, "string": str}
_LIMITS = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt"}
_DESCRIPTIVE = {"type", "default", "description"}


def find_config(path_or_name: str | Path) -> Path:
    """Return the path of a config file, or of the config of this name that comes with medfed.

    An existing file has priority. UserError for a name that is unknown, or could also mean a file beside it.
    """
    path, name = Path(path_or_name), str(path_or_name)
    if path.exists() or path.suffix or path.name != name:
        return path
    shipped = registry.shipped_configs()
    if name not in shipped:
        raise UserError(f"no file '{name}' and no config of this name. {registry.suggestion(name, shipped)}")
    for own in (path.with_suffix(suffix) for suffix in (".yaml", ".yml")):
        if own.exists() and not own.samefile(shipped[name]):
            raise UserError(
                f"'{name}' is the name of a config that comes with medfed, but {own} exists, too; expected one; "
                f"write {own} for this file, or {shipped[name]} for the other config"
            )
    return shipped[name]


def check_config(path_or_name: str | Path, overrides: Sequence[str] = ()) -> None:
    """Check keys, names, and single values of a config file; UserErrors as `medfed.config.schema.load` raises.

    What only a class can check is left to `load`. A missing folder `data.root` is a Problem.
    """
    path = find_config(path_or_name)
    document = strict_yaml.parse(strict_yaml.read(path), str(path))
    if not isinstance(document, dict):
        return
    flags = [Override.parse(text) for text in overrides]
    apply(document, flags)
    if mistakes := list(_mistakes(document)):
        raise UserErrors(f"{origin(each, flags) or path}: {each}" for each in mistakes)
    data = document["data"] if isinstance(document["data"], Mapping) else {}
    name, root = str(data.get("name")), Path(str(data.get("root")))
    creates = data.get("if_missing") == "phantom" or name.endswith("_phantom")
    if name in registry.known_names("datasets") and not creates and not root.is_dir():
        why = f"the folder '{root}' does not exist{note_absolute(root)}"
        cure = f"`python -m medfed.data card {name}` explains how to get it"
        raise Problem("missing folder", "data.root", why, cure)


def _mistakes(document: Mapping[str, Any]) -> Iterator[Mistake]:
    schema = search.read_schema()
    yield from _of_block((), document, schema)
    for block, entry in schema["properties"].items():
        definition, values = schema["$defs"].get(entry.get("$ref", "").rpartition("/")[2]), document.get(block)
        if definition is None or not isinstance(values, Mapping):
            continue
        if block in BLOCK_KINDS:
            name = values.get("name")
            try:
                if isinstance(name, str):
                    registry.require(name, BLOCK_KINDS[block])
            except UserError as error:
                yield Mistake((block, "name"), str(error))
            definition = schema["$defs"].get(f"{block}.{name}")  # None for a class outside of medfed
        if definition is not None:
            yield from _of_block((block,), values, definition)


def _of_block(path: tuple[str, ...], values: Mapping[str, Any], definition: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes in the keys and the plain values of one block."""
    entries, required = definition["properties"], definition.get("required", ())
    fields = [
        (key, _type(entry), field(default=MISSING if key in required else None)) for key, entry in entries.items()
    ]
    try:
        bounds.build(make_dataclass("Block", fields, kw_only=True), values)
    except SettingsError as error:
        yield from (each.below(path) for each in error.mistakes)


def _type(entry: Mapping[str, Any]) -> Any:
    """Return the annotated type of a setting with a number, a word or true and false as its value; Any for others."""
    more = entry.keys() - _DESCRIPTIVE
    if more == {"enum"} and entry.get("type") == "string":
        return Literal[tuple(entry["enum"])]
    if entry.get("type") not in _TYPES or more - _LIMITS.keys():
        return Any
    limits: dict[str, Any] = {_LIMITS[key]: entry[key] for key in more}
    return Annotated[_TYPES[entry["type"]], Field(**limits)]
