"""Search the settings of a config by a word. `python -m medfed keys` prints what is found.

The settings of medfed's own classes are read from the file `schema.json`, so that a search takes a fraction of a second
and imports neither torch nor MONAI. Only a class that is not in this file is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from medfed.core import registry
from medfed.core.errors import UserError
from medfed.core.registry import BLOCK_KINDS, VALUE_KINDS, nearest, suggestion

FILE = Path(__file__).with_name("schema.json")  # the JSON Schema of a config
WORDS = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text", "null": "null"}


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
        settings: JSON Schema of each setting; its description is the meaning. Without a default, it must be written.
    """

    block: str
    name: str
    title: str
    source: str
    file: str
    settings: Mapping[str, Mapping[str, Any]]


def find(word: str) -> list[Group]:
    """Return the groups of settings for a word: all of a block or name, or those with this key alone.

    A word is a block (`training`), the name of a method, network, dataset, engine or metric (`elcfs`), a dotted name,
    or a key (`alpha`), also behind a block or name (`training.betas`, `elcfs.alpha`). UserError, with the most similar
    word, if nothing is found.
    """
    names = _names()
    block, _, rest = word.partition(".")
    if block in BLOCK_KINDS and rest.partition(".")[0] in registry.known_names(BLOCK_KINDS[block]):
        return find(rest)
    if word and word in blocks():
        return [blocks()[word]]
    if word in names:
        return [_named(word, names)]
    prefix, _, key = word.rpartition(".")
    if prefix in names:
        groups = [_named(prefix, names)]
    elif prefix and prefix in blocks():
        groups = [blocks()[prefix], *(_named(name, names) for name, (key_, _) in names.items() if key_ == prefix)]
    elif "." not in word:
        groups = [*blocks().values(), *(_named(name, names) for name in names)]
    else:
        return [_outside(word, names)]
    matches = [_with_key(group, key) for group in groups if key in group.settings]
    if not matches:
        words = list(dict.fromkeys(key for group in groups for key in group.settings))
        if prefix:
            raise UserError(f"no setting '{key}' in {prefix}. {suggestion(key, words)}")
        raise _unknown(word, names, words)
    return _without_repeats(matches)


@cache
def blocks() -> dict[str, Group]:
    """The settings of each block; those in no block, such as `seed`, are under ""."""
    schema = _schema()
    top = {key: entry for key, entry in schema["properties"].items() if "$ref" not in entry}
    groups = {"": _group("", "", {**schema, "properties": top})}
    for block, entry in schema["properties"].items():
        if "$ref" in entry:
            name = block if block in BLOCK_KINDS else entry["$ref"].rpartition("/")[2]
            groups[block] = _group(block, "", schema["$defs"][name])
    return groups


def _names() -> dict[str, tuple[str, str]]:
    """The key or block that takes each known name, and the kind of the name for `registry`."""
    keys = [*BLOCK_KINDS.items(), *((key, kind) for key, kinds in VALUE_KINDS.items() for kind in kinds)]
    return {name: (key, kind) for key, kind in keys for name in registry.known_names(kind)}


def _named(name: str, names: Mapping[str, tuple[str, str]]) -> Group:
    """The settings of a method, network, dataset, engine or metric by its name."""
    key, kind = names[name]
    if key not in BLOCK_KINDS:
        return Group(key, name, registry.known_names(kind)[name], "", registry.file_of(kind, name), {})
    definition = _schema()["$defs"].get(f"{key}.{name}")
    return _from_class(key, name) if definition is None else _group(key, name, definition)


def _from_class(block: str, name: str) -> Group:
    """The settings of a class that is not in the file `schema.json`."""
    from medfed.config import json_schema  # imports torch and MONAI, which takes seconds

    return _group(block, name, json_schema.named(BLOCK_KINDS[block], name))


@cache
def _schema() -> dict[str, Any]:
    """The content of medfed's JSON schema of a config."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def _group(block: str, name: str, schema: Mapping[str, Any]) -> Group:
    return Group(block, name, schema["description"], schema["x-source"], schema["x-file"], schema["properties"])


def _with_key(group: Group, key: str) -> Group:
    return replace(group, settings={key: group.settings[key]})


def _without_repeats(groups: list[Group]) -> list[Group]:
    """Leave out names whose setting is the same as that of their block, such as `weights` of each network."""
    of_blocks = {
        (group.block, key): setting for group in groups if not group.name for key, setting in group.settings.items()
    }
    return [
        group
        for group in groups
        if not group.name
        or any(of_blocks.get((group.block, key)) != setting for key, setting in group.settings.items())
    ]


def _outside(word: str, names: Iterable[str]) -> Group:
    """The settings of a class outside of medfed by its dotted name, or one setting if a key follows the name."""
    parts = word.split(".")
    if not parts[0] or nearest(parts[0], names):
        raise _unknown(word, names, ())
    errors = set()
    for name, key in ((word, ""), (".".join(parts[:-1]), parts[-1])):
        for block, kind in BLOCK_KINDS.items():
            try:
                registry.resolve(kind, name)
            except UserError as error:
                errors |= set() if key else {str(error)}
                continue
            group = _from_class(block, name)
            if key and key not in group.settings:
                raise UserError(f"no setting '{key}' in {name}. {suggestion(key, group.settings)}")
            return _with_key(group, key) if key else group
    # A class that cannot be imported has the same error for each kind.
    raise UserError(errors.pop() if len(errors) == 1 else f"'{word}' is no dataset, network or method")


def _unknown(word: str, names: Iterable[str], keys: Iterable[str]) -> UserError:
    """The error about an unknown word: the most similar word or key, and all known blocks and names."""
    words = [*filter(None, blocks()), *names]
    near = nearest(word, [*words, *keys])
    question = f"Did you mean '{near}'? " if near else ""
    return UserError(f"no block, name or setting '{word}'. {question}Known: {', '.join(words)}")


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
