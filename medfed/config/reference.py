"""List every setting that a config may hold, with its type, range, default, meaning and source.

Types and ranges come from the annotations of the dataclasses, the meaning from the `Args:` section of their docstrings.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from pydantic.json_schema import GenerateJsonSchema

from medfed.config.schema import NAMED, Config, to_plain
from medfed.config.setting import REQUIRED, Group, Setting
from medfed.core import bounds, registry
from medfed.core.bounds import DEFAULT_PRESET
from medfed.datasets.base import Dataset
from medfed.federation.method import Method

BLOCK_TITLES = {
    "data": "The dataset: which images, from which sites, and how they are divided.",
    "network": "The network that is trained.",
    "method": "The federated method: how the sites train and how the coordinator combines their weights.",
}
NAME_MEANINGS = {
    "datasets": "The dataset: a file of medfed/datasets/collections or medfed/phantoms, or the dotted name of a class.",
    "networks": "The network: a file of medfed/networks, or the dotted name of a class.",
    "methods": "The method: a file of medfed/methods, or the dotted name of a class.",
}
PRESET_MEANING = "Named settings of the method. They apply first; keys that are written in the config replace them."
_ENTRY = re.compile(r"    (\w+(?:, \w+)*): (.*)")


def settings_of(cls: type) -> dict[str, Setting]:
    """The settings of a dataclass, in the order of its fields."""
    meanings, schemas = meanings_of(cls), field_schemas(cls)
    presets: Mapping[str, Mapping[str, Any]] = cls.presets if issubclass(cls, Method) else {}
    settings = {}
    for field in bounds.written_fields(cls):
        values = {name: to_plain(preset[field.name]) for name, preset in presets.items() if field.name in preset}
        settings[field.name] = Setting(schemas[field.name], _default(field), meanings.get(field.name, ""), values)
    return settings


def meanings_of(cls: type) -> dict[str, str]:
    """Read the meaning of each field from the section `Args:` of the docstrings of a class and its base classes.

    An entry is `name: text` or `name, other: text`; it continues on lines with a deeper indent.
    """
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        lines = inspect.cleandoc(vars(base).get("__doc__") or "").splitlines()
        names: list[str] = []
        for line in lines[lines.index("Args:") + 1 :] if "Args:" in lines else ():
            if entry := _ENTRY.match(line):
                names = entry[1].split(", ")
                meanings |= dict.fromkeys(names, entry[2])
            elif names and line.startswith(" " * 5):
                meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
            elif line.strip():  # the end of the section, or a paragraph below the entries
                break
    return meanings


@cache
def blocks() -> dict[str, Group]:
    """The settings of each block of a config; those in no block, such as `seed`, are under ""."""
    hints, top = get_type_hints(Config), settings_of(Config)
    classes = {name: hints[name] for name in top if dataclasses.is_dataclass(hints[name])}
    groups = {"": _group(Config, "", "", {name: entry for name, entry in top.items() if name not in classes})}
    for block, cls in classes.items():
        settings = settings_of(cls)
        if cls in NAMED:
            settings = {**name_settings(cls), **settings}
        groups[block] = _group(cls, block, "", settings)
    return groups


def name_settings(base: type, cls: type | None = None) -> dict[str, Setting]:
    """Describe the key `name`, by which a block chooses a class (only `cls` if given), and `preset` of a method."""
    kind = NAMED[base]
    names: dict[str, Any] = {"anyOf": [{"enum": list(registry.known_names(kind))}, {"type": "string"}]}
    presets: dict[str, Any] = {"type": "string"}
    if cls is not None:
        names = {"enum": [registry.name_of(kind, cls)]}
        presets = {"enum": list(cls.presets)} if issubclass(cls, Method) else {}
    settings = {"name": Setting(names, REQUIRED, NAME_MEANINGS[kind])}
    return settings | ({"preset": Setting(presets, DEFAULT_PRESET, PRESET_MEANING)} if base is Method else {})


@cache
def named(kind: str, name: str) -> Group:
    """The settings of one method, network or dataset; UserError if there is no such class."""
    cls = registry.resolve(kind, name)
    block, base = next((block, base) for block, base in named_blocks().items() if NAMED[base] == kind)
    with registry.code_of(cls):
        return _group(cls, block, name, {**name_settings(base, cls), **settings_of(cls)})


def named_blocks() -> dict[str, type]:
    """The base classes of the blocks that choose a class by `name`: `data`, `network` and `method`."""
    hints = get_type_hints(Config)
    return {block: hints[block] for block in hints if hints[block] in NAMED}


def _group(cls: type, block: str, name: str, settings: Mapping[str, Setting]) -> Group:
    """Build a group of settings; its title and source come from the docstrings of the class and its module."""
    module = sys.modules[cls.__module__]
    paragraphs = inspect.cleandoc(module.__doc__ or "").split("\n\n")
    title = BLOCK_TITLES.get(block, inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0])
    title = " ".join((paragraphs[0] if name else title).split())
    source = ""
    if issubclass(cls, Method) and name and len(paragraphs) > 1:
        source = " ".join(paragraphs[1].split()).partition(" Idea:")[0]
    elif issubclass(cls, Dataset) and name and cls.published_counts:
        source = getattr(cls.card, "citation", "")
    path = Path(str(module.__file__))
    inside = path.is_relative_to(registry.PACKAGE)
    file = str(path.relative_to(registry.PACKAGE.parent)) if inside else str(path)
    return Group(block, name, title, source, file, settings)


def _default(field: dataclasses.Field) -> Any:
    """The default of a field as plain data; REQUIRED without one."""
    if field.default is not dataclasses.MISSING:
        return to_plain(field.default)
    return REQUIRED if field.default_factory is dataclasses.MISSING else to_plain(field.default_factory())


def field_schemas(cls: type) -> dict[str, dict[str, Any]]:
    """The JSON Schema of each written field; a field that holds another dataclass refers to `#/$defs/CLASS`."""
    properties = bounds.adapter(cls).json_schema(schema_generator=_JsonSchema).get("properties", {})
    return {name: _without_titles(schema) for name, schema in properties.items()}


class _JsonSchema(GenerateJsonSchema):
    """JSON Schema also of fields that no config can hold, such as functions: any value."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}


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
