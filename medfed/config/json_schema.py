"""Make the JSON Schema of a config (`schema.json`), with which editors complete keys, show meanings and mark mistakes.

The first line of a config can refer to it: `# yaml-language-server: $schema=PATH`. The schema describes each value
alone. Only the loader checks whether several values fit together, dotted names of classes and their settings, whole
numbers with a decimal point, `.nan` and `.inf`, and names of sites that differ only in upper and lower case. `x-file`
(the file that defines a block or name) and `x-source` (its publication) are for `medfed.config.search`.
"""

from __future__ import annotations

import json
from typing import Any, get_type_hints

from medfed.config import reference
from medfed.config.schema import NAMED, Config
from medfed.config.setting import REQUIRED, VALUE_KINDS, Group, Setting
from medfed.core import registry
from medfed.core.site_names import MAX_LENGTH

_DOTTED = {"type": "string", "title": "dotted name", "pattern": r"^[^\s.]+(\.[^\s.]+)+$"}  # a class outside of medfed
_BAD = '/\\\\:*?"<>|\\u0000-\\u001f'  # in the name of a site; it also does not end with a space or dot
_SITE = {"maxLength": MAX_LENGTH, "pattern": f"^[^{_BAD} .-]([^{_BAD}]*[^{_BAD} .])?$"}
_SITE_KEYS = ("unseen_site", "validation_site")


def to_text() -> str:
    """The content of `schema.json`: one line for each definition."""
    schema = build()
    lines = [f"{_compact(name)}:{_compact(definition)}" for name, definition in schema.pop("$defs").items()]
    return _compact(schema)[:-1] + ',"$defs":{\n' + ",\n".join(lines) + "\n}}\n"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def build() -> dict[str, Any]:
    """Return the JSON Schema (Draft 2020-12) of a config."""
    definitions: dict[str, Any] = {}
    properties = {}
    classes: dict[str, type] = get_type_hints(Config)
    for name, group in reference.blocks().items():
        if not name:
            continue
        cls = classes[name]
        if cls in NAMED:
            definitions |= _named_block(name, cls)
        else:
            block = _object(group, name)
            definitions[cls.__name__] = {**block, "type": ["object", "null"]}  # an empty block has its defaults
        properties[name] = {"$ref": f"#/$defs/{cls.__name__}"}
    top = _object(reference.blocks()[""], "")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "medfed config",
        "$comment": "Made by `python -m medfed keys --json-schema`.",
        **top,
        "properties": {**properties, **top["properties"]},
        "required": [name for name, cls in classes.items() if cls in NAMED],
        "$defs": definitions,
    }


def _named_block(block: str, base: type) -> dict[str, Any]:
    """The definitions of a block that chooses its class by `name`: the block, and one for each known name.

    The definition with the name of the block, such as "method", has the settings of the base class. No other definition
    refers to it, because a class outside of medfed may give these settings other types.
    """
    kind = NAMED[base]
    names = registry.known_names(kind)
    definitions: dict[str, Any] = {
        base.__name__: {
            "type": "object",
            "description": reference.blocks()[block].title,
            "properties": {
                "name": {
                    "description": reference.NAME_MEANINGS[kind],
                    "anyOf": [*({"const": name, "description": title} for name, title in names.items()), _DOTTED],
                }
            },
            "required": ["name"],
            "allOf": [
                {
                    "if": {"properties": {"name": {"const": name}}, "required": ["name"]},
                    "then": {"$ref": f"#/$defs/{block}.{name}"},
                }
                for name in names
            ],
        }
    }
    definitions[block] = _object(reference.blocks()[block], block)
    for name in names:
        definitions[f"{block}.{name}"] = _object(reference.named(kind, name), block)
    return definitions


def _object(group: Group, block: str) -> dict[str, Any]:
    """The schema of a block with the settings of a group and no others."""
    return {
        "type": "object",
        "description": group.title,
        "x-file": group.file,
        "x-source": group.source,
        "properties": {key: _property(setting, block, key) for key, setting in group.settings.items()},
        "required": [key for key, setting in group.settings.items() if setting.default is REQUIRED],
        "additionalProperties": False,
    }


def _property(setting: Setting, block: str, key: str) -> dict[str, Any]:
    """The JSON schema of one setting, with its description, its default and the names that it accepts."""
    schema = dict(setting.schema)
    if (block, key) == ("data", "sites"):
        schema = {**schema, "uniqueItems": True, "items": {**schema["items"], **_SITE}}
    if block == "federation" and key in _SITE_KEYS:
        schema |= {**_SITE, "pattern": f"^$|{_SITE['pattern']}"}  # "" names no site
    if kinds := VALUE_KINDS.get(f"{block}.{key}"):
        names = sorted({name for kind in kinds for name in registry.known_names(kind)})
        choice = {"anyOf": [{"enum": names}, _DOTTED]}
        schema = {**schema, "items": choice} if schema["type"] == "array" else choice
    default = {} if setting.default is REQUIRED else {"default": setting.default}
    presets = "".join(f" Preset {name}: {json.dumps(value)}." for name, value in setting.presets.items())
    return {**schema, "description": setting.meaning + presets, **default}
