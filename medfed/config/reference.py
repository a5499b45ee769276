"""List every setting that a config may hold, with its type, range, default, meaning and source.

`python -m medfed keys` prints this list; `medfed.config.json_schema` makes the JSON Schema of it. Types and ranges come
from the annotations of the dataclasses, the meaning from the `Args:` section of their docstrings.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from medfed.config.overrides import DEFAULT_PRESET
from medfed.config.schema import NAMED, Config
from medfed.config.validation import to_plain
from medfed.core import bounds, registry
from medfed.core.errors import UserError
from medfed.core.mistakes import WORDS, describe_limits
from medfed.core.registry import nearest, suggestion
from medfed.datasets.base import Dataset
from medfed.federation.method import Method

REQUIRED = object()  # the default of a setting that has none
BLOCK_TITLES = {
    "data": "The dataset: which images, from which sites, and how they are divided.",
    "network": "The network that is trained.",
    "method": "The federated method: how the sites train and how the coordinator combines their weights.",
}
NAME_MEANINGS = {
    "datasets": "The dataset: a file of medfed/datasets or medfed/phantoms, or the dotted name of a class.",
    "networks": "The network: a file of medfed/networks, or the dotted name of a class.",
    "methods": "The method: a file of medfed/methods, or the dotted name of a class.",
}
PRESET_MEANING = "Named settings of the method. They apply first; keys that are written in the config replace them."
_ENTRY = re.compile(r"    (\w+(?:, \w+)*): (.*)")


@dataclass(frozen=True)
class Setting:
    """One setting of a config, with its type, range, default and meaning.

    Args:
        schema: JSON Schema of its values.
        default: the value without an entry in the config, as plain data; REQUIRED if there is none.
        meaning: what it does.
        presets: its values in the presets of a method that set it, by preset.
    """

    schema: Mapping[str, Any]
    default: Any
    meaning: str
    presets: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """The settings of one block, or of one method, network or dataset.

    Args:
        block: the block of a config that holds the settings; "" for the top level.
        name: the name of the method, network or dataset; "" for a block.
        title: one line about it.
        source: the publication; "" without one.
        file: the file that defines it, relative to the folder that holds the package.
        settings: by key.
    """

    block: str
    name: str
    title: str
    source: str
    file: str
    settings: Mapping[str, Setting]


def settings_of(cls: type) -> dict[str, Setting]:
    """Return the settings that a dataclass defines, each with its type, range, default and meaning.

    Args:
        cls: a dataclass whose fields can be written in a config, such as a method.

    Returns:
        The settings by the name of the field, in the order of the fields.
    """
    meanings, schemas = meanings_of(cls), bounds.field_schemas(cls)
    presets: Mapping[str, Mapping[str, Any]] = cls.presets if issubclass(cls, Method) else {}
    settings = {}
    for field in bounds.written_fields(cls):
        values = {name: to_plain(preset[field.name], _no_label) for name, preset in presets.items()
                  if field.name in preset}  # fmt: skip
        settings[field.name] = Setting(schemas[field.name], _default(field), meanings.get(field.name, ""), values)
    return settings


def meanings_of(cls: type) -> dict[str, str]:
    """Read the meaning of each field of a class from the section `Args:` of docstrings.

    The docstrings of the class and of its base classes are read. An entry is `name: text` or `name, other: text`; it
    continues on lines with a deeper indent.

    Args:
        cls: a dataclass.

    Returns:
        The text of each entry, by the name of the field.
    """
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        lines = inspect.cleandoc(vars(base).get("__doc__") or "").splitlines()
        names: list[str] = []
        for line in lines[lines.index("Args:") + 1:] if "Args:" in lines else ():
            if entry := _ENTRY.match(line):
                names = entry[1].split(", ")
                meanings |= dict.fromkeys(names, entry[2])
            elif names and line.startswith(" " * 5):
                meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
            elif line.strip():  # the end of the section, or a paragraph below the entries
                break
    return meanings


def describe_schema(schema: Mapping[str, Any]) -> str:
    """Describe briefly which type and range a JSON Schema allows, such as "number in [0, 1)" or "list of 2: number".

    Args:
        schema: JSON Schema of one value.
    """
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
    word = WORDS.get(schema.get("type", ""), "a block of keys and values").removeprefix("a ")
    return f"{word} {describe_limits(schema)}".strip()


@cache
def blocks() -> dict[str, Group]:
    """Return the settings of each block of a config.

    A block is a group of keys under one name, such as `training:` in the YAML file.

    Returns:
        The settings of each block, by its name. The settings that are in no block, such as `seed`, have the name "".
    """
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
    """Describe the keys of a config block that choose its class: `name`, and for the block `method` also `preset`.

    A preset is a named set of values for a method's settings.

    Args:
        base: `Dataset`, `NetworkSettings` or `Method`, the base class of the block.
        cls: only this class may be chosen by `name`, and only its presets by `preset`; None allows all classes.

    Returns:
        The settings by key.
    """
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
    """Return the settings of one method, network or dataset.

    Args:
        kind: "methods", "networks" or "datasets".
        name: the name in a config: a known name such as "elcfs", or `package.module.Class`.

    Returns:
        The settings with their types, ranges, defaults and meanings, and a title and source of the class.

    Raises:
        UserError: if there is no class of this name.
    """
    cls = registry.resolve(kind, name)
    block, base = next((block, base) for block, base in named_blocks().items() if NAMED[base] == kind)
    return _group(cls, block, name, {**name_settings(base, cls), **settings_of(cls)})


def find(word: str) -> list[Group]:
    """Search the settings of a config by the word that a user typed.

    Args:
        word: a block of the config (`training`), the name of a method, network or dataset (`elcfs`), or the key of a
            setting (`alpha`). A key may follow a block or a name: `training.betas`, `elcfs.alpha` or `method.alpha`. A
            key alone finds every setting with this key.

    Returns:
        A group for each block or name that has matching settings, with these settings only.

    Raises:
        UserError: if nothing is found. The message contains the most similar known word.
    """
    known = {name: kind for kind in NAMED.values() for name in registry.known_names(kind)}
    if word in blocks():
        return [blocks()[word]]
    if word in known:
        return [named(known[word], word)]
    prefix, _, key = word.rpartition(".")
    kind = next((NAMED[base] for block, base in named_blocks().items() if block == prefix), None)
    if prefix in known:
        groups = [named(known[prefix], prefix)]
    elif prefix and prefix in blocks() and kind is None:
        groups = [blocks()[prefix]]
    elif not prefix or kind is not None:
        groups = [named(of, name) for name, of in known.items() if kind in (None, of)]
        groups = [*blocks().values(), *groups] if kind is None else [blocks()[prefix], *groups]
    else:
        return [_outside(word, known)]
    matches = [dataclasses.replace(group, settings={key: group.settings[key]}) for group in groups
               if key in group.settings]  # fmt: skip
    if not matches:
        words = list(dict.fromkeys(key for group in groups for key in group.settings))
        if prefix:
            raise UserError(f"no setting '{key}' in {prefix}. {suggestion(key, words)}")
        raise _unknown(word, known, words)
    return _without_repeats(matches)


def _without_repeats(groups: list[Group]) -> list[Group]:
    """Leave out names whose setting is the same as that of their block, such as `weights` of each network."""
    of_blocks = {(group.block, key): setting for group in groups if not group.name
                 for key, setting in group.settings.items()}  # fmt: skip
    return [group for group in groups if not group.name
            or any(of_blocks.get((group.block, key)) != setting for key, setting in group.settings.items())]


def _outside(word: str, names: Iterable[str]) -> Group:
    """Return the settings of a class outside of medfed, by its dotted name."""
    for kind in NAMED.values():
        try:
            return named(kind, word)
        except UserError:
            continue
    raise _unknown(word, names, ())


def _unknown(word: str, names: Iterable[str], keys: Iterable[str]) -> UserError:
    """Return the error about an unknown word: the nearest word of all, and the known ones without the keys."""
    words = [*filter(None, blocks()), *names]
    near = nearest(word, [*words, *keys])
    question = f"Did you mean '{near}'? " if near else ""
    return UserError(f"no block, method, network, dataset or setting '{word}'. {question}Known: {', '.join(words)}")


def named_blocks() -> dict[str, type]:
    """Return the blocks of a config that choose a class by the key `name`: `data`, `network` and `method`.

    Returns:
        For each block, the base class of the classes that it can choose.
    """
    hints = get_type_hints(Config)
    return {block: hints[block] for block in hints if hints[block] in NAMED}


def _group(cls: type, block: str, name: str, settings: Mapping[str, Setting]) -> Group:
    """Return a group with the title and the source that the docstrings have."""
    module = sys.modules[cls.__module__]
    paragraphs = inspect.cleandoc(module.__doc__ or "").split("\n\n")
    title = BLOCK_TITLES.get(block, inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0])
    title = " ".join((paragraphs[0] if name else title).split())
    source = ""
    if issubclass(cls, Method) and name and len(paragraphs) > 1:
        source = " ".join(paragraphs[1].split()).partition(" Idea:")[0]
    elif issubclass(cls, Dataset) and name and cls.generality == 0:  # a published collection
        source = getattr(cls.card, "citation", "")
    path = Path(str(module.__file__))
    inside = path.is_relative_to(registry.PACKAGE)
    file = str(path.relative_to(registry.PACKAGE.parent)) if inside else str(path)
    return Group(block, name, title, source, file, settings)


def _default(field: dataclasses.Field) -> Any:
    """Return the default of a field as plain data; REQUIRED without one."""
    if field.default is not dataclasses.MISSING:
        return to_plain(field.default, _no_label)
    return REQUIRED if field.default_factory is dataclasses.MISSING else to_plain(field.default_factory(), _no_label)


def _no_label(value: object) -> dict[str, Any]:
    """Return no keys: the defaults of settings are no classes that a name chooses."""
    return {}
