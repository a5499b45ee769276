"""Search the settings of a config by a word. `python -m medfed keys` prints what is found.

The settings are read from the file `schema.json`, so that a search takes a fraction of a second and imports neither
torch nor MONAI. The docstring of a class outside of medfed explains its settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from medfed.core import registry
from medfed.core.errors import UserError
from medfed.core.registry import BLOCK_KINDS, VALUE_KINDS, suggestion

FILE = Path(__file__).with_name("schema.json")  # the JSON Schema of a config
WORDS = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text", "null": "null"}


@dataclass(frozen=True)
class Group:
    """The settings of one block, or of one method, network or dataset, by key."""

    block: str  # "" for the top level; for an engine or a metric the key that takes its name: "federation.engine"
    name: str  # of the method, network, dataset, engine or metric; "" for a block
    title: str  # one line that says what it is
    source: str  # its publication; "" if there is none
    file: str  # that defines its class, relative to the folder that holds the package
    settings: Mapping[str, Mapping[str, Any]]  # JSON Schema of each setting; without a default, it must be written


def find(word: str) -> list[Group]:
    """Return the groups of settings for a word: all of a block or name, or those with this key alone.

    A key may stand behind a block or a name (`training.betas`, `elcfs.alpha`). UserError if nothing is found.
    """
    block, _, rest = word.partition(".")
    if block in BLOCK_KINDS and rest.partition(".")[0] in registry.known_names(BLOCK_KINDS[block]):
        return find(rest)
    groups = blocks() | _named()
    if word and word in groups:
        return [groups[word]]
    prefix, _, key = word.rpartition(".")
    places = [group for name, group in groups.items() if not prefix or prefix in (name, group.block)]
    of_blocks = {group.block: group.settings.get(key) for group in places if not group.name}
    matches = [
        replace(group, settings={key: group.settings[key]})
        for group in places
        if key in group.settings and (not group.name or group.settings[key] != of_blocks.get(group.block))
    ]
    if not matches or word.startswith("."):
        words = list(dict.fromkeys(key for group in places for key in group.settings))
        if places and prefix:
            raise UserError(f"no setting '{key}' in {prefix}. {suggestion(key, words)}")
        raise UserError(f"no block, name or setting '{word}'. {suggestion(word, filter(None, groups), words)}")
    return matches


@cache
def blocks() -> dict[str, Group]:
    """The settings of each block; those in no block, such as `seed`, are under ""."""
    schema = read_schema()
    top = {key: entry for key, entry in schema["properties"].items() if "$ref" not in entry}
    groups = {"": _group("", "", {**schema, "properties": top})}
    for block, entry in schema["properties"].items():
        if "$ref" in entry:
            name = block if block in BLOCK_KINDS else entry["$ref"].rpartition("/")[2]
            groups[block] = _group(block, "", schema["$defs"][name])
    return groups


def _named() -> dict[str, Group]:
    """The settings of each method, network and dataset, and each engine and metric, by name."""
    keys = [*BLOCK_KINDS.items(), *((key, kind) for key, kinds in VALUE_KINDS.items() for kind in kinds)]
    groups = {}
    for key, kind in keys:
        for name, title in registry.known_names(kind).items():
            definition = read_schema()["$defs"].get(f"{key}.{name}")
            group = Group(key, name, title, "", registry.file_of(kind, name), {})
            groups[name] = _group(key, name, definition) if definition else group
    return groups


@cache
def read_schema() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def _group(block: str, name: str, schema: Mapping[str, Any]) -> Group:
    return Group(block, name, schema["description"], schema["x-source"], schema["x-file"], schema["properties"])


def describe_schema(schema: Mapping[str, Any]) -> str:
    """Describe type and range: the `title`, or text such as "number in [0, 1)" or "list of 2: number"."""
    if "title" in schema:
        return schema["title"]
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    if "anyOf" in schema:
        return " | ".join(map(describe_schema, schema["anyOf"]))
    if "prefixItems" in schema:
        items = dict.fromkeys(map(describe_schema, schema["prefixItems"]))
        return f"list of {len(schema['prefixItems'])}: {', '.join(items)}"
    if schema.get("type") == "array":
        return f"list: {describe_schema(schema['items'])}"
    if schema.get("type") == "object":
        entries = schema.get("additionalProperties")
        return f"block: {describe_schema(entries)}" if isinstance(entries, Mapping) else "block"
    return f"{WORDS.get(schema.get('type', ''), 'block of keys and values')} {_limits(schema)}".strip()


def _limits(schema: Mapping[str, Any]) -> str:
    """Describe the range of a number, such as "at least 0" or "in [0, 1)"; "" without limits."""
    above, low = schema.get("exclusiveMinimum"), schema.get("minimum")
    below, high = schema.get("exclusiveMaximum"), schema.get("maximum")
    first, last = low if above is None else above, high if below is None else below
    if first is not None and last is not None:
        return f"in {'[' if above is None else '('}{first:.15g}, {last:.15g}{']' if below is None else ')'}"
    if first is not None:
        return f"{'at least' if above is None else 'above'} {first:.15g}"
    return "" if last is None else f"{'at most' if below is None else 'below'} {last:.15g}"
