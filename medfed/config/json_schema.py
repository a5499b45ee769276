"""Make the JSON Schema of a config (`schema.json`), with which editors complete keys, show meanings and mark mistakes.

The first line of a config can refer to it: `# yaml-language-server: $schema=PATH`. The schema describes each value
alone. Only the loader checks whether several values fit together, dotted names of classes and their settings, whole
numbers with a decimal point, `.nan` and `.inf`, and names of sites that differ only in upper and lower case. `x-file`
(the file that defines a block or name) and `x-source` (its publication) are for `medfed.config.search`.

Types and ranges come from the annotations of the dataclasses, the meaning from the `Args:` section of their docstrings.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any, get_type_hints

from medfed.config.schema import NAMED, Config, to_plain
from medfed.core import bounds, registry
from medfed.core.registry import BLOCK_KINDS, VALUE_KINDS
from medfed.core.site_names import MAX_LENGTH
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
_DOTTED = {"type": "string", "title": "dotted name", "pattern": r"^[^\s.]+(\.[^\s.]+)+$"}  # a class outside of medfed
_BAD = '/\\\\:*?"<>|\\u0000-\\u001f'  # in the name of a site; it also does not end with a space or dot
_SITE = {"maxLength": MAX_LENGTH, "pattern": f"^[^{_BAD} .-]([^{_BAD}]*[^{_BAD} .])?$"}
_SITE_KEYS = ("federation.unseen_site", "federation.validation_site")


def to_text() -> str:
    """The content of `schema.json`: one line for each definition."""
    schema = build()
    lines = [f"{_compact(name)}:{_compact(definition)}" for name, definition in schema.pop("$defs").items()]
    return _compact(schema)[:-1] + ',"$defs":{\n' + ",\n".join(lines) + "\n}}\n"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def build() -> dict[str, Any]:
    """Return the JSON Schema (Draft 2020-12) of a config."""
    top: dict[str, Any] = _definition(Config, "")
    blocks: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    types: dict[str, type] = get_type_hints(Config)
    for block, cls in types.items():
        if dataclasses.is_dataclass(cls):
            blocks[block] = {"$ref": f"#/$defs/{cls.__name__}"}
            del top["properties"][block]
        if cls in NAMED:
            definitions |= _named_block(block, cls)
        elif block in blocks:  # an empty block has its defaults
            definitions[cls.__name__] = {**_definition(cls, block), "type": ["object", "null"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "medfed config",
        "$comment": "Made by `python -m medfed keys --json-schema`.",
        **top,
        "properties": {**blocks, **top["properties"]},
        "$defs": definitions,
    }


def _named_block(block: str, base: type) -> dict[str, Any]:
    """The definitions of a block that chooses its class by `name`: the block, and one for each known name.

    No other definition refers to that with the name of the block: a class outside of medfed may have other types.
    """
    kind = NAMED[base]
    names = registry.known_names(kind)
    known = [{"const": name, "description": title} for name, title in names.items()]
    choices = [
        {
            "if": {"properties": {"name": {"const": name}}, "required": ["name"]},
            "then": {"$ref": f"#/$defs/{block}.{name}"},
        }
        for name in names
    ]
    choice = {
        "type": "object",
        "description": BLOCK_TITLES[block],
        "properties": {"name": {"description": NAME_MEANINGS[kind], "anyOf": [*known, _DOTTED]}},
        "required": ["name"],
        "allOf": choices,
    }
    of_names = {f"{block}.{name}": _definition(registry.resolve(kind, name), block, name) for name in names}
    return {base.__name__: choice, block: _definition(base, block), **of_names}


def _definition(cls: type, block: str, name: str = "") -> dict[str, Any]:
    """The schema of a block, or of the class with a name that a block may choose: its settings and no others."""
    module = sys.modules[cls.__module__]
    paragraphs = inspect.cleandoc(module.__doc__ or "").split("\n\n")
    title = paragraphs[0] if name else BLOCK_TITLES.get(block, inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0])
    source = ""
    if issubclass(cls, Method) and name and len(paragraphs) > 1:
        source = " ".join(paragraphs[1].split()).partition(" Idea:")[0]
    elif issubclass(cls, Dataset) and name and cls.published_counts:
        source = getattr(cls.card, "citation", "")
    path = Path(str(module.__file__))
    settings = _settings(cls, block)
    choice = {} if block not in BLOCK_KINDS else _choice(cls, BLOCK_KINDS[block], name)
    required = [field.name for field in bounds.written_fields(cls) if bounds.is_required(field)]
    return {
        "type": "object",
        "description": " ".join(title.split()),
        "x-file": str(path.relative_to(registry.PACKAGE.parent) if path.is_relative_to(registry.PACKAGE) else path),
        "x-source": source,
        "properties": choice | settings,
        "required": ["name"] * ("name" in choice) + required,
        "additionalProperties": False,
    }


def _choice(cls: type, kind: str, name: str) -> dict[str, Any]:
    """The properties `name`, by which a block chooses a class, and `preset` of a method; with a name, only this one."""
    names: dict[str, Any] = {"anyOf": [{"enum": list(registry.known_names(kind))}, {"type": "string"}]}
    names = {"enum": [registry.name_of(kind, cls)]} if name else names
    properties = {"name": {**names, "description": NAME_MEANINGS[kind]}}
    if issubclass(cls, Method):
        presets = {"enum": list(cls.presets)} if name else {"type": "string"}
        properties["preset"] = {**presets, "description": PRESET_MEANING, "default": bounds.DEFAULT_PRESET}
    return properties


def _settings(cls: type, block: str) -> dict[str, dict[str, Any]]:
    """The schema of each setting of a dataclass, with its meaning, its default and the names that it accepts."""
    meanings, presets = meanings_of(cls), cls.presets if issubclass(cls, Method) else {}
    defaults, schemas = bounds.defaults(cls), bounds.adapter(cls).json_schema().get("properties", {})
    settings = {}
    for field in bounds.written_fields(cls):
        key = f"{block}.{field.name}".removeprefix(".")
        schema = _without_titles(schemas[field.name])
        if key == "data.sites":
            schema |= {"uniqueItems": True, "items": {**schema["items"], **_SITE}}
        if key in _SITE_KEYS:
            schema |= {**_SITE, "pattern": f"^$|{_SITE['pattern']}"}  # "" names no site
        if kinds := VALUE_KINDS.get(key):
            names = sorted({name for kind in kinds for name in registry.known_names(kind)})
            choice = {"anyOf": [{"enum": names}, _DOTTED]}
            schema = {**schema, "items": choice} if schema["type"] == "array" else choice
        values = {name: preset[field.name] for name, preset in presets.items() if field.name in preset}
        of_presets = "".join(f" Preset {name}: {json.dumps(to_plain(value))}." for name, value in values.items())
        settings[field.name] = {**schema, "description": meanings.get(field.name, "") + of_presets}
        if field.name in defaults:
            settings[field.name]["default"] = to_plain(defaults[field.name])
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
