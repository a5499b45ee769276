"""Describe one setting of a config and groups of settings. This module imports neither torch nor MONAI."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("schema.json")  # the JSON Schema of a config
REQUIRED = object()  # the default of a setting that has none
BLOCK_KINDS = {"data": "datasets", "network": "networks", "method": "methods"}  # blocks that choose a class by `name`
WORDS = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text", "null": "null"}
VALUE_KINDS = {"federation.engine": ("engines",), "evaluation.metrics": ("mask_metrics", "class_metrics")}


@dataclass(frozen=True)
class Setting:
    """One setting of a config.

    Args:
        schema: JSON Schema of its values.
        default: as plain data; REQUIRED if the config must contain the setting.
        presets: values that the presets of a method give to the setting, by preset.
    """

    schema: Mapping[str, Any]
    default: Any
    meaning: str
    presets: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """The settings of one block, or of one method, network or dataset, by key.

    Args:
        block: the block of a config; "" for the top level. An engine or a metric has no settings; for it, this is the
            dotted key that takes its name, such as "federation.engine".
        name: of the method, network, dataset, engine or metric; "" for a block.
        title: one line that says what it is.
        source: its publication; "" if there is none.
        file: path of the file that defines its class, relative to the folder that holds the package.
    """

    block: str
    name: str
    title: str
    source: str
    file: str
    settings: Mapping[str, Setting]


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
        return f"block: {describe_schema(schema['additionalProperties'])}"
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
