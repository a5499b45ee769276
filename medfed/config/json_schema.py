"""Make the JSON Schema of a config, with which editors complete keys, show their meaning and mark mistakes.

The schema is in `medfed/config/schema.json`; `python -m medfed keys --json-schema` prints it. A config names it in its
first line: `# yaml-language-server: $schema=PATH`. It describes each value alone. Three things only the loader checks:
whether several values fit together, the settings of classes outside of medfed, and that a whole number is written
without a decimal point.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from medfed.config import reference
from medfed.config.reference import REQUIRED, Setting
from medfed.config.schema import NAMED, Config
from medfed.core import registry
from medfed.tasks.evaluation import METRIC_KINDS

FILE = Path(__file__).with_name("schema.json")
_DOTTED = {"type": "string", "pattern": r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"}  # the name of a class outside of medfed
_KINDS = {("federation", "engine"): ("engines",), ("evaluation", "metrics"): METRIC_KINDS}  # keys that name classes


def to_text() -> str:
    """Return the content of the file `schema.json`: the JSON Schema of a config, as text."""
    return json.dumps(build(), indent=1, ensure_ascii=False) + "\n"


def build() -> dict[str, Any]:
    """Return the JSON Schema (Draft 2020-12) of a config, as nested dictionaries."""
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
            block = _object(group.settings, group.title, name)
            definitions[cls.__name__] = {**block, "type": ["object", "null"]}  # an empty block has its defaults
        properties[name] = {"$ref": f"#/$defs/{cls.__name__}"}
    top = _object(reference.blocks()[""].settings, "", "")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "medfed config",
        "description": "Made by `python -m medfed keys --json-schema`.",
        "type": "object",
        "properties": {**properties, **top["properties"]},
        "required": [name for name, cls in classes.items() if cls in NAMED],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _named_block(block: str, base: type) -> dict[str, Any]:
    """Return the definitions of a block that chooses its class by `name`: the block, and one for each known name."""
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
    for name in names:
        group = reference.named(kind, name)
        definitions[f"{block}.{name}"] = _object(group.settings, group.title, block)
    return definitions


def _object(settings: Mapping[str, Setting], description: str, block: str) -> dict[str, Any]:
    """Return the schema of a block with these settings and no others."""
    return {
        "type": "object",
        "description": description,
        "properties": {key: _property(setting, block, key) for key, setting in settings.items()},
        "required": [key for key, setting in settings.items() if setting.default is REQUIRED],
        "additionalProperties": False,
    }


def _property(setting: Setting, block: str, key: str) -> dict[str, Any]:
    """Return the schema of one setting with its meaning and default."""
    schema = dict(setting.schema)
    if kinds := _KINDS.get((block, key)):
        names = sorted({name for kind in kinds for name in registry.known_names(kind)})
        choice = {"anyOf": [{"enum": names}, _DOTTED]}
        schema = {**schema, "items": choice} if schema["type"] == "array" else choice
    default = {} if setting.default is REQUIRED else {"default": setting.default}
    presets = "".join(f" Preset {name}: {json.dumps(value)}." for name, value in setting.presets.items())
    return {**schema, "description": setting.meaning + presets, **default}
