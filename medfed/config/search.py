"""Search the settings of a config by a word. `python -m medfed keys` prints what is found.

The settings of medfed's own classes are read from the file `schema.json`, so that a search takes a fraction of a second
and imports neither torch nor MONAI. Only a class that is not in this file is imported.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from medfed.config.setting import BLOCK_KINDS, FILE, REQUIRED, VALUE_KINDS, Group, Setting
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.core.registry import nearest, suggestion


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
    return _from_class(kind, name) if definition is None else _group(key, name, definition)


def _from_class(kind: str, name: str) -> Group:
    """The settings of a class that is not in the file `schema.json`."""
    from medfed.config import reference  # imports torch and MONAI, which takes seconds

    return reference.named(kind, name)


@cache
def _schema() -> dict[str, Any]:
    """The content of medfed's JSON schema of a config."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def _group(block: str, name: str, schema: Mapping[str, Any]) -> Group:
    """The settings of one definition in the JSON Schema; their meanings also contain the presets."""
    settings = {
        key: Setting(entry, entry.get("default", REQUIRED), entry["description"])
        for key, entry in schema["properties"].items()
    }
    return Group(block, name, schema["description"], schema["x-source"], schema["x-file"], settings)


def _with_key(group: Group, key: str) -> Group:
    return dataclasses.replace(group, settings={key: group.settings[key]})


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
    errors = []
    for name, key in ((word, ""), (".".join(parts[:-1]), parts[-1])):
        for kind in BLOCK_KINDS.values():
            try:
                group = _from_class(kind, name)
            except UserError as error:
                errors += [] if key else [str(error)]
                continue
            if key and key not in group.settings:
                raise UserError(f"no setting '{key}' in {name}. {suggestion(key, group.settings)}")
            return _with_key(group, key) if key else group
    # A class is at most of one kind, so the sentences that it is none of the other kinds explain nothing.
    reasons = [sentence for sentence in errors if " is no " not in sentence]
    raise UserError(reasons[0] if reasons else f"'{word}' is no dataset, network or method")


def _unknown(word: str, names: Iterable[str], keys: Iterable[str]) -> UserError:
    """The error about an unknown word: the most similar word or key, and all known blocks and names."""
    words = [*filter(None, blocks()), *names]
    near = nearest(word, [*words, *keys])
    question = f"Did you mean '{near}'? " if near else ""
    return UserError(f"no block, name or setting '{word}'. {question}Known: {', '.join(words)}")
